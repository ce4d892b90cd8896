"""HTTP/1.1 on the wire: connections that are kept open, and a clock reading beside every piece of an answer.

Nothing is interpreted here but HTTP's own framing: what a piece says is read after the run, so that a client on one
core keeps up with thousands of requests a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CANCELLED = "cancelled by the client"


@dataclass(eq=False, slots=True)
class Exchange:
    """One request and its answer as bytes; times are readings of `time.perf_counter`, in seconds.

    `due`: when it is to be sent, in seconds after the run began; None for as soon as there is a place. `sent`: when it
    was written. `pieces`: (time, bytes) of the answer's body. `fault`: why the answer is not whole. `cancel_after`:
    close the connection after so many pieces.
    """

    payload: bytes
    due: float | None = None
    sent: float | None = None
    status: int | None = None
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    fault: str | None = None
    cancel_after: int | None = None

    @property
    def body(self) -> bytes:
        """The whole body so far."""
        return b"".join(piece for _, piece in self.pieces)

    @property
    def untouched(self) -> bool:
        """Whether nothing of an answer has come."""
        return self.status is None and not self.pieces


class Connection(asyncio.Protocol):
    """One connection: carries one exchange after another."""

    def __init__(self, finished: Callable[[Connection, Exchange], None]) -> None:
        """`finished` is called when an exchange is over, well or not."""
        import httptools

        self.finished = finished
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._now = 0.0
        self.carried = 0

    @property
    def is_open(self) -> bool:
        """Whether another exchange can be started."""
        return self._transport is not None and not self._transport.is_closing()

    def start(self, exchange: Exchange) -> None:
        """Write the request."""
        assert self._transport is not None
        self._exchange = exchange
        exchange.sent = time.perf_counter()
        self._transport.write(exchange.payload)

    def give_up(self, why: str) -> None:
        """End the exchange and the connection, and say why."""
        exchange = self._exchange
        if exchange is not None and exchange.fault is None:
            exchange.fault = why
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close without an exchange."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """asyncio: something has come."""
        import httptools

        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.give_up(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        if self._exchange is not None and self._exchange.fault is None:
            self._exchange.fault = f"the connection was lost{f' ({exc})' if exc else ''}"
        self._over()

    def on_headers_complete(self) -> None:
        """httptools: the status is known."""
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body; what comes with it after the exchange was given up counts no more."""
        exchange = self._exchange
        if exchange is None or exchange.fault is not None:
            return
        exchange.pieces.append((self._now, body))
        if exchange.cancel_after is not None and len(exchange.pieces) >= exchange.cancel_after:
            self.give_up(CANCELLED)

    def on_message_complete(self) -> None:
        """httptools: the answer is whole."""
        if self._exchange is not None and self._exchange.fault is None:
            self.carried += 1
            if not self._parser.should_keep_alive():
                self.close()
            self._over()

    def _over(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self.finished(self, exchange)
