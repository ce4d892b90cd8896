"""A server that answers at once, and is the judge of punctuality: it notes when each request arrived.

    python answering_server.py PORT

POST /v1/completions, or by chat, gives a stream of eight tokens in one piece, as vLLM would. GET /arrivals gives the
moments at which requests arrived since the last such call, in seconds. httptools and uvloop come with vLLM's server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import httptools
import uvloop

MODEL = "answering"
TOKENS = 8
SAID = {"text": "a", "delta": {"role": "assistant", "content": "a"}}
ASKED = (b"/v1/completions", b"/v1/chat/completions")


def stream() -> bytes:
    """The answer to every request."""
    tokens = range(5, 5 + TOKENS)
    events = [
        {"model": MODEL, "choices": [{"index": 0, **SAID, "token_ids": [each], "finish_reason": None}]}
        for each in tokens
    ]
    events[0]["choices"][0]["prompt_token_ids"] = [5]  # type: ignore[index]
    events[-1]["choices"][0]["finish_reason"] = "length"  # type: ignore[index]
    usage = {"prompt_tokens": 1, "completion_tokens": TOKENS, "total_tokens": TOKENS + 1}
    lines = [*(json.dumps(event) for event in events), json.dumps({"model": MODEL, "choices": [], "usage": usage})]
    body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


ANSWER = stream()
ARRIVALS: list[float] = []


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: somebody is there."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """asyncio: something has come."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """httptools: a new request."""
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """httptools: its path."""
        self._url += url

    def on_message_complete(self) -> None:
        """httptools: it is whole."""
        if self._url in ASKED:
            ARRIVALS.append(time.perf_counter())
            self._transport.write(ANSWER)
        elif self._url == b"/arrivals":
            self._write(json.dumps(ARRIVALS))
            ARRIVALS.clear()
        else:
            self._write(json.dumps({"data": [{"id": MODEL, "max_model_len": 4096}]}))

    def _write(self, text: str) -> None:
        body = text.encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def main() -> None:
    """Listen until ended."""
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
