"""HTTP to one server, by aiohttp: single questions, and the requests of a run.

Requests follow one absolute schedule from the start of the run: no gap is slept, so no delay adds up. One that is due
while no place is free waits, and its latency counts from the moment it was due. What an answer says is read after the
run; while the clock runs, only when each piece of it came is noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp

from pytest_specdec.errors import EngineError

OPENED_BEFOREHAND = 128
MAX_QUESTIONS = 8
KEPT_SECONDS = 3600.0
SHOWN = 300
Answered = TypeVar("Answered")


@dataclass(eq=False, slots=True)
class Exchange:
    """One request and its answer as bytes; times are readings of `time.perf_counter`, in seconds.

    `due`: when it is to be sent, in seconds after the run began; None for as soon as there is a place. `sent`: when it
    was first written. `reused`: whether that was on a kept connection. `pieces`: (time, bytes) of the answer's body.
    `fault`: why the answer is not whole.
    """

    path: str = ""
    body: bytes = b""
    due: float | None = None
    sent: float | None = None
    reused: bool = False
    status: int | None = None
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    fault: str | None = None

    @property
    def answer(self) -> bytes:
        """The whole body so far."""
        return b"".join(piece for _, piece in self.pieces)


class Client:
    """The server at `url`, an event loop, and the connections that outlive a run; no proxy stands between."""

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str]) -> None:
        """`timeout`: seconds for each single question. `headers` go with everything that is asked."""
        self.url = url
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        headers = {"Content-Type": "application/json", **headers}
        self._session = self._wait(_open_session(headers, keepalive_timeout=KEPT_SECONDS))
        self._unkept = self._wait(_open_session(headers, force_close=True))

    def text(self, path: str, body: Mapping[str, Any] | None = None, timeout: float | None = None) -> str:
        """The answer's text; `path` may be a whole URL. Raises EngineError with the server's words."""
        return self._wait(self._text(path, body, timeout, self._unkept))

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON. Raises EngineError."""
        return self.json_of_each(path, [body])[0]

    def json_of_each(self, path: str, bodies: Sequence[Mapping[str, Any] | None]) -> list[Any]:
        """The answers to several questions, a few of them at once. Raises EngineError."""
        return self._wait(self._json_of_each(path, bodies))

    def warm(self, path: str, connections: int) -> None:
        """Open what is missing of so many connections, so that no run waits for them; a refusal shows in the run."""
        self._wait(self._warm(path, min(connections, OPENED_BEFOREHAND)))

    def run(self, exchanges: Sequence[Exchange], concurrency: int, limit_s: float) -> tuple[float, float]:
        """Carry out all exchanges, `concurrency` at once at most; return when it began and when it ended.

        An exchange without a whole answer after `limit_s` seconds is given up.
        """
        with collector_at_rest():
            return self._wait(on_schedule(exchanges, concurrency, partial(self._carry, limit_s=limit_s)))

    def close(self) -> None:
        """Close the connections and the loop; safe to call twice."""
        if not self._loop.is_closed():
            self._wait(self._session.close())
            self._wait(self._unkept.close())
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Answered]) -> Answered:
        """The work's result; if this thread is interrupted meanwhile, nothing of the work goes on."""
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        finally:
            task.cancel()
            self._loop.run_until_complete(asyncio.wait([task]))

    async def _text(
        self, path: str, body: Mapping[str, Any] | None, timeout: float | None, session: aiohttp.ClientSession
    ) -> str:
        url = path if path.startswith("http") else self.url + path
        method, limit = "GET" if body is None else "POST", aiohttp.ClientTimeout(total=timeout or self._timeout)
        asked = session.request(method, url, json=body, timeout=limit, trace_request_ctx=Exchange())
        try:
            async with asked as answer:
                words = await answer.text(errors="replace")
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise EngineError(f"{url}: {str(error) or 'no answer in time'}") from None
        if not answer.ok:
            raise EngineError(f"{url}: HTTP {answer.status}: {words[:SHOWN]}")
        return words

    async def _json_of_each(self, path: str, bodies: Sequence[Mapping[str, Any] | None]) -> list[Any]:
        places = asyncio.Semaphore(MAX_QUESTIONS)

        async def one(body: Mapping[str, Any] | None) -> Any:
            async with places:
                text = await self._text(path, body, None, self._unkept)
            try:
                return json.loads(text)
            except ValueError:
                raise EngineError(f"{self.url}{path}: not JSON: {text[:SHOWN]}") from None

        return await asyncio.gather(*map(one, bodies))

    async def _warm(self, path: str, connections: int) -> None:
        await asyncio.sleep(0)  # what the server has closed meanwhile is noticed
        touched = (self._text(path, None, None, self._session) for _ in range(connections))
        await asyncio.gather(*touched, return_exceptions=True)

    async def _carry(self, exchange: Exchange, limit_s: float) -> None:
        until = time.perf_counter() + limit_s
        try:
            try:
                await self._send(exchange, until, self._session)
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                if exchange.status is not None or not exchange.reused:
                    raise
                # The server closed a kept connection as this went out: it was not heard. Others may be closed as well.
                await self._send(exchange, until, self._unkept)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            exchange.fault = _fault(exchange, error, limit_s)

    async def _send(self, exchange: Exchange, until: float, session: aiohttp.ClientSession) -> None:
        url, limit = self.url + exchange.path, aiohttp.ClientTimeout(total=max(until - time.perf_counter(), 0.001))
        async with session.post(url, data=exchange.body, timeout=limit, trace_request_ctx=exchange) as answer:
            exchange.status = answer.status
            async for piece, _ in answer.content.iter_chunks():
                exchange.pieces.append((time.perf_counter(), piece))


async def on_schedule(
    exchanges: Sequence[Exchange], concurrency: int, carry: Callable[[Exchange], Awaitable[None]]
) -> tuple[float, float]:
    """Carry each exchange as soon as it is due and there is a place; return when this began and when it ended."""
    places, under_way = asyncio.Semaphore(concurrency), []

    async def carry_one(exchange: Exchange) -> None:
        try:
            await carry(exchange)
        finally:
            places.release()

    began = time.perf_counter()
    try:
        for exchange in exchanges:
            while (wait := began + (exchange.due or 0.0) - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            await places.acquire()
            under_way.append(asyncio.create_task(carry_one(exchange)))
        await asyncio.gather(*under_way)
    finally:
        for task in under_way:
            task.cancel()
    return began, time.perf_counter()


async def _open_session(headers: Mapping[str, str], **connections: Any) -> aiohttp.ClientSession:
    notes = aiohttp.TraceConfig()
    notes.on_connection_reuseconn.append(_note_reuse)
    notes.on_request_headers_sent.append(_note_sending)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, **connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        skip_auto_headers=["Accept-Encoding"],
        trace_configs=[notes],
    )


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, about: object) -> None:
    context.trace_request_ctx.reused = True


async def _note_sending(session: aiohttp.ClientSession, context: SimpleNamespace, about: object) -> None:
    if context.trace_request_ctx.sent is None:
        context.trace_request_ctx.sent = time.perf_counter()


def _fault(exchange: Exchange, error: Exception, limit_s: float) -> str:
    if exchange.sent is None:
        return f"no connection: {str(error) or 'no answer'}"
    if isinstance(error, asyncio.TimeoutError):
        return f"no whole answer within {limit_s:g} s"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"the answer is not HTTP: {error.message}"
    return "the connection was lost"


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """No garbage collection while the clock runs: it would stop the client for tens of milliseconds."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
