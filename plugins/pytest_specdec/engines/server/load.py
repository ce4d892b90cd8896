"""The load: requests sent at their moments or as places become free, over connections that are kept.

Arrivals follow one absolute schedule from the start of the run: no gap is slept, so no delay adds up. A request that
is due while no place is free waits, and its latency counts from the moment it was due.
"""

from __future__ import annotations

import asyncio
import gc
import math
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pytest_specdec.engines.server.wire import Connection, Exchange

OPENED_BEFOREHAND = 128
LOOKS_IN_LIMIT = 20


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    encrypted: bool = False

    @classmethod
    def of(cls, url: str) -> Address:
        """From http://host:port or https://host."""
        parts = urlsplit(url)
        encrypted = parts.scheme == "https"
        return cls(parts.hostname or "", parts.port or (443 if encrypted else 80), encrypted)


class Client:
    """An event loop and the connections that outlive a run."""

    def __init__(self, address: Address) -> None:
        import uvloop

        self._address = address
        self._tls = ssl.create_default_context() if address.encrypted else None
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._idle: list[Connection] = []

    def warm(self, connections: int) -> None:
        """Open what is missing of so many connections, so that no run waits for them; a refusal shows in the run."""
        self._loop.run_until_complete(self._warm(min(connections, OPENED_BEFOREHAND)))

    def run(self, exchanges: Sequence[Exchange], concurrency: int, limit_s: float) -> tuple[float, float]:
        """Carry out all exchanges, `concurrency` at once at most; return when it began and when it ended.

        An exchange without a whole answer `limit_s` seconds after it was sent is given up.
        """
        with collector_at_rest():
            return self._loop.run_until_complete(self._run(exchanges, concurrency, limit_s))

    def close(self) -> None:
        """Close the connections and the loop; safe to call twice."""
        if self._loop.is_closed():
            return
        for connection in self._idle:
            connection.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _warm(self, connections: int) -> None:
        await asyncio.sleep(0)
        self._idle = [connection for connection in self._idle if connection.is_open]
        missing = [self.connect(_nobody) for _ in range(connections - len(self._idle))]
        opened = await asyncio.gather(*missing, return_exceptions=True)
        self._idle += [connection for connection in opened if isinstance(connection, Connection)]

    async def connect(self, finished: Any) -> Connection:
        """A new connection. Raises OSError."""
        where: dict[str, Any] = {"ssl": self._tls} if self._tls else {}
        made = await asyncio.get_running_loop().create_connection(
            lambda: Connection(finished), self._address.host, self._address.port, **where
        )
        return made[1]

    async def _run(self, exchanges: Sequence[Exchange], concurrency: int, limit_s: float) -> tuple[float, float]:
        run = _Run(self, self._idle, exchanges, concurrency, limit_s)
        try:
            return await run.over
        finally:
            run.stop()


class _Run:
    """One run: what waits, what is under way, and the schedule."""

    def __init__(
        self, client: Client, idle: list[Connection], exchanges: Sequence[Exchange], concurrency: int, limit_s: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[tuple[float, float]] = self._loop.create_future()
        self._client, self._idle, self._limit_s = client, idle, limit_s
        self._free, self._left = concurrency, len(exchanges)
        self._scheduled = deque(each for each in exchanges if each.due is not None)
        self._ready = deque(each for each in exchanges if each.due is None)
        self._busy: dict[Connection, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        for connection in idle:
            connection.finished = self._finished
        self._began = time.perf_counter()
        self._arrive()
        self._look()

    def stop(self) -> None:
        """Leave no timer, and no exchange that nobody waits for."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._busy):
            connection.give_up("the run was interrupted")

    def _arrive(self) -> None:
        """Take in what is due, and come back for the next."""
        scheduled, now = self._scheduled, time.perf_counter() - self._began
        while scheduled and scheduled[0].due <= now:  # type: ignore[operator]
            self._ready.append(scheduled.popleft())
        if scheduled:
            wait = math.ceil((scheduled[0].due - now) * 1000) / 1000  # type: ignore[operator]
            self._timers["arrival"] = self._loop.call_later(wait, self._arrive)
        self._send()

    def _send(self) -> None:
        while self._ready and self._free:
            self._free -= 1
            self._start(self._ready.popleft())

    def _start(self, exchange: Exchange) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._busy[connection] = exchange
                connection.start(exchange)
                return
        task = self._loop.create_task(self._start_anew(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_anew(self, exchange: Exchange) -> None:
        try:
            connection = await asyncio.wait_for(self._client.connect(self._finished), self._limit_s)
        except (OSError, asyncio.TimeoutError) as error:
            exchange.fault = f"no connection: {str(error) or 'no answer'}"
            self._done()
            return
        self._busy[connection] = exchange
        connection.start(exchange)

    def _finished(self, connection: Connection, exchange: Exchange) -> None:
        self._busy.pop(connection, None)
        if connection.is_open and exchange.fault is None:
            self._idle.append(connection)
        elif connection.carried and exchange.untouched and exchange.fault and "lost" in exchange.fault:
            self._once_more(exchange)
            return
        self._done()

    def _once_more(self, exchange: Exchange) -> None:
        """A kept connection was closed by the server as the request went out: it has not been heard."""
        exchange.fault = None
        task = self._loop.create_task(self._start_anew(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _done(self) -> None:
        self._free += 1
        self._left -= 1
        if self._left:
            self._send()
        elif not self.over.done():
            self.over.set_result((self._began, time.perf_counter()))

    def _look(self) -> None:
        """Give up what takes too long."""
        now = time.perf_counter()
        for connection, exchange in list(self._busy.items()):
            if exchange.sent is not None and now - exchange.sent > self._limit_s:
                connection.give_up(f"no whole answer within {self._limit_s:g} s")
        self._timers["look"] = self._loop.call_later(self._limit_s / LOOKS_IN_LIMIT, self._look)


def _nobody(connection: Connection, exchange: Exchange) -> None:
    """Nobody waits for what a connection carries before a run has taken it."""


@contextmanager
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
