"""The served client on connections that misbehave: what is asked once more, what a fault is called, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.broken_off import broken_off

from pytest_specdec.engines.server.client import Client, Exchange

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def serve() -> Iterator[Callable[[Talk], str]]:
    """Starts a server that talks so with each connection, in a thread; returns its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def start(talk: Talk) -> str:
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(talk, "127.0.0.1", 0), loop).result()
        return f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    yield start
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def request(reader: asyncio.StreamReader) -> str:
    """Read one request; its first line."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    length = next((line.partition(":")[2] for line in head if line.lower().startswith("content-length")), "0")
    await reader.readexactly(int(length))
    return head[0]


def carry_out(url: str, *exchanges: Exchange) -> None:
    """One after the other, on connections that are kept."""
    with contextlib.closing(Client(url, 600.0, {})) as client:
        client.run(exchanges, 1, 600.0)


def test_a_kept_connection_that_the_server_closes_costs_no_answer(serve: Callable[[Talk], str]) -> None:
    """It closed as the request went out, so the request has not been heard and is asked once more, on a new one."""
    asked: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await request(reader))
        writer.write(WHOLE)
        asked.append(f"{await request(reader)}, unheard")
        writer.close()

    first, second = Exchange("/a"), Exchange("/b")
    carry_out(serve(talk), first, second)
    assert [(each.status, each.answer, each.fault) for each in (first, second)] == [(200, b"whole", None)] * 2
    assert asked == ["POST /a HTTP/1.1", "POST /b HTTP/1.1, unheard", "POST /b HTTP/1.1"]


def test_a_question_goes_on_a_connection_of_its_own(serve: Callable[[Talk], str]) -> None:
    """A kept one may have been closed while answers were judged, and what is posted on it is lost."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await request(reader)
        writer.close()

    with contextlib.closing(Client(serve(talk), 600.0, {})) as client:
        client.warm("/ready", 1)
        assert client.json("/rate", {}) == {}
        assert client.json_of_each("/rate", [{}, {}]) == [{}, {}]


@pytest.mark.parametrize("hears", [False, True])
def test_however_many_kept_connections_the_server_closes_it_is_asked_once_more(
    serve: Callable[[Talk], str], hears: bool
) -> None:
    """On a new one: stale ones cost no answer, and what a server hears and drops is heard twice at most."""
    heard: list[tuple[str, float]] = []
    all_open = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await request(reader), time.perf_counter()))
        if len(heard) == 3:
            all_open.set()
        if len(heard) <= 3 or not hears:
            await all_open.wait()
            writer.write(WHOLE)
            heard.append((await request(reader), time.perf_counter()))
        writer.close()

    last = Exchange("/b")
    with contextlib.closing(Client(serve(talk), 600.0, {})) as client:
        client.run([Exchange("/a") for _ in range(3)], 3, 600.0)
        client.run([last], 1, 600.0)
    assert (last.answer, last.fault) == ((b"", "the connection was lost") if hears else (b"whole", None))
    assert [line for line, _ in heard] == ["POST /a HTTP/1.1"] * 3 + ["POST /b HTTP/1.1"] * 2
    assert last.sent is not None
    assert last.sent < heard[3][1]


def test_a_new_connection_that_the_server_closes_is_a_fault(serve: Callable[[Talk], str]) -> None:
    """Nothing is asked twice."""
    asked: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await request(reader))
        writer.close()

    exchange = Exchange("/a")
    carry_out(serve(talk), exchange)
    assert (exchange.fault, asked) == ("the connection was lost", ["POST /a HTTP/1.1"])


def test_an_answer_broken_off_after_its_first_piece_has_one_piece_though_all_came_at_once(
    serve: Callable[[Talk], str],
) -> None:
    """A client that is slow to read finds several pieces in one reading."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")

    exchange = broken_off("/a")
    carry_out(serve(talk), exchange)
    assert (exchange.answer, exchange.fault) == (b"a", "the connection was lost")


def test_an_answer_in_another_protocol_is_called_so(serve: Callable[[Talk], str]) -> None:
    """With what it began with."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")

    exchange = Exchange("/a")
    carry_out(serve(talk), exchange)
    assert str(exchange.fault).startswith("the answer is not HTTP: ")


def test_where_nobody_listens_there_is_no_connection() -> None:
    """And nothing was sent."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        exchange = Exchange("/a")
        carry_out(f"http://127.0.0.1:{taken.getsockname()[1]}", exchange)
    assert str(exchange.fault).startswith("no connection: ")
    assert exchange.sent is None


def test_a_run_that_is_interrupted_leaves_no_request_under_way(serve: Callable[[Talk], str]) -> None:
    """The server sees its connection closed, and the client can be used again."""
    gone = threading.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "/hang" in await request(reader):
            client._loop.call_soon_threadsafe(interrupt)
            await reader.read()
            gone.set()
        else:
            writer.write(WHOLE)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with contextlib.closing(Client(serve(talk), 600.0, {})) as client:
        with pytest.raises(KeyboardInterrupt):
            client.run([Exchange("/hang")], 1, 600.0)
        assert gone.wait(600)
        assert client.text("/again") == "whole"
