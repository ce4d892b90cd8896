"""A small server that speaks vLLM's protocol, decodes by a map of tokens, and has the fault that it is told to have.

It also answers as SGLang does, by `/generate` and `/server_info`, and tells of itself what `--told` says.

It runs as a program: `python fake_server.py --port N [--drafts] [--fault NAME] [--only TOKEN]`. With `--only`, the
fault befalls requests whose prompt begins with that token. Standard library only, and without asyncio, whose import
takes longer than all else here: each connection has a thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO

VOCABULARY = 103
BURST = 3
SURE = 10.0
MODEL = "t"
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
REFUSAL = "logit_bias is not supported with speculative decoding"
RESETS = ("POST /reset_prefix_cache?reset_external=true", "POST /flush_cache?timeout=10")
IN_THE_STREAM: dict[str | None, int] = {"refusal in the stream": 400, "dying words in the stream": 500}
STATUSES: dict[str | None, tuple[int, str]] = {
    "503": (503, "overloaded"),
    "refusal": (400, REFUSAL),
    "dying words": (500, f"EngineCore failed: {REFUSAL}"),
    "wrong field": (400, "no such field"),
}


def following(token: int) -> int:
    """The map: the target's own choice after a token; every choice is a plain id."""
    return (token * 3 + 7) % (VOCABULARY - 3) + 3


class FakeServer:
    """Answers to a few paths."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._counted = dict.fromkeys(COUNTERS, 0)
        self._preempted = 0  # each request, once
        self._hits = 0
        self._cached: set[tuple[int, ...]] = set()
        self._counting = threading.Lock()

    def serve(self, reader: BinaryIO, writer: BinaryIO) -> None:
        """One connection, request after request."""
        while head := reader.readline():
            method, path, _ = head.decode().split()
            length = 0
            while (line := reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
            body = json.loads(reader.read(length)) if length else {}
            if not self._answer(f"{method} {path}", body, writer):
                return

    def _answer(self, asked: str, body: dict[str, Any], writer: BinaryIO) -> bool:
        """Whether the connection goes on."""
        if asked == "GET /health":
            whole(writer, 200, "")
        elif asked == "GET /v1/models":
            adapters = [{"id": name, "root": f"/{name}", "parent": MODEL} for name in self._options.adapters]
            whole(writer, 200, json.dumps({"data": [{"id": MODEL, "max_model_len": 512}, *adapters]}))
        elif asked == "GET /metrics":
            whole(writer, 200, self._page())
        elif asked in RESETS:
            refused = self._options.fault == "pending"
            self._cached = self._cached if refused else set()
            whole(writer, 400 if refused else 200, "requests are pending" if refused else "")
        elif asked == "GET /server_info":
            whole(writer, 200, self._options.told)
        elif asked == "POST /generate":
            whole(writer, 200, "".join(map(bytes.decode, self._generate(body))))
        elif asked == "POST /v1/completions" and "prompt_logprobs" in body:
            whole(writer, 200, json.dumps(rate(body)))
        elif asked == "POST /v1/completions":
            return self._complete(body, writer)
        else:
            whole(writer, 404, "no such path")
        return True

    def _page(self) -> str:
        lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {count}.0' for name, count in self._counted.items()]
        positions = self._counted["drafts"]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}} {positions}' for at in range(2)
        ]
        lines += ['vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9', f"vllm:prefix_cache_hits_total {self._hits}"]
        lines += [f"vllm:num_preemptions_total {self._preempted}"]
        return "" if self._options.fault == "no counters" else "\n".join(lines)

    def _complete(self, body: dict[str, Any], writer: BinaryIO) -> bool:
        hit = self._options.only is None or body["prompt"][0] == self._options.only
        fault = self._options.fault if hit else None
        if fault in STATUSES:
            status, message = STATUSES[fault]
            whole(writer, status, json.dumps({"error": {"message": message}}))
            return True
        with self._counting:
            self._preempted += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in self._events(body, fault):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            time.sleep(self._options.pause)
        if fault == "cut":
            return False
        writer.write(b"0\r\n\r\n")
        return True

    def _events(self, body: dict[str, Any], fault: str | None) -> Iterator[bytes]:
        tokens = decode(body["prompt"][-1], body["max_tokens"])
        if fault == "wrong token":
            tokens[3] = tokens[3] - 1 if tokens[3] > 3 else tokens[3] + 1
        if fault in IN_THE_STREAM:
            yield event({"error": {"message": REFUSAL, "code": IN_THE_STREAM[fault]}})
            return
        burst = BURST if self._options.drafts else 1
        for at in range(0, len(tokens), burst):
            if at > 0:
                misbehave(fault)
            if at > 0 and fault in ("truncate", "cut"):
                return
            if at > 0 and fault == "error":
                yield event({"error": {"message": "out of memory", "code": 500}})
                return
            yield self._chunk(body, tokens[at : at + burst], at, len(tokens), fault)
        counted, cached = len(tokens) + (fault == "usage"), self._find_cached(tuple(body["prompt"]))
        usage = {"completion_tokens": counted, "prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": cached}}
        yield event({"model": body["model"], "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _generate(self, body: dict[str, Any]) -> Iterator[bytes]:
        """SGLang's events: one of them at the end has what was drafted, if anything was verified."""
        tokens = decode(body["input_ids"][-1], body["sampling_params"]["max_new_tokens"])
        drafts = -(-(len(tokens) - 1) // BURST) if self._options.drafts else 0
        proposed = drafts * (BURST - 1)
        correct, steps = proposed, [*[0] * (BURST - 1), drafts]
        if self._options.fault == "all rejected":
            correct, steps = 0, [drafts]
        told = {
            "spec_verify_ct": drafts,
            "spec_num_proposed_drafts": proposed,
            "spec_num_correct_drafts": correct,
            "spec_correct_drafts_histogram": steps,
        }
        about = {"completion_tokens": len(tokens), "finish_reason": {"type": "length"}, **(told if drafts else {})}
        yield event({"output_ids": tokens, "meta_info": about})
        yield b"data: [DONE]\n\n"

    def _find_cached(self, prompt: tuple[int, ...]) -> int:
        """The whole prompt, the second time."""
        with self._counting:
            found = len(prompt) if prompt in self._cached else 0
            self._cached.add(prompt)
            self._hits += found
        return found

    def _chunk(self, body: dict[str, Any], tokens: list[int], at: int, total: int, fault: str | None) -> bytes:
        if self._options.drafts and len(tokens) == BURST:
            with self._counting:
                for name, count in zip(COUNTERS, (1, BURST - 1, BURST - 1), strict=True):
                    self._counted[name] += count
        choice = {
            "index": 0,
            "text": " ".join(map(str, tokens)),
            "token_ids": None if fault == "no ids" else tokens,
            "prompt_token_ids": body["prompt"] if at == 0 else None,
            "finish_reason": "length" if at + len(tokens) == total else None,
        }
        return event({"model": "another" if fault == "other model" else body["model"], "choices": [choice]})


def misbehave(fault: str | None) -> None:
    """In the middle of an answer."""
    if fault == "die":
        print("about to die", flush=True)
        os._exit(9)
    if fault == "hang":
        time.sleep(3600)


def decode(last: int, count: int) -> list[int]:
    """What the target alone says after `last`."""
    tokens: list[int] = []
    for _ in range(count):
        last = following(last)
        tokens.append(last)
    return tokens


def rate(body: dict[str, Any]) -> dict[str, Any]:
    """Each prompt token beside the choice of the map, as logits."""
    ids = body["prompt"]
    rows = [
        {"0": {"logprob": 0.0}, str(token): {"logprob": 0.0}} | {str(following(before)): {"logprob": SURE}}
        for before, token in pairs(ids)
    ]
    return {"model": body["model"], "choices": [{"text": "", "prompt_logprobs": [None, *rows]}]}


def pairs(ids: list[int]) -> list[tuple[int, int]]:
    """Each token with the one before it."""
    return list(pairwise(ids))


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(value)}\n\n".encode()


def whole(writer: BinaryIO, status: int, text: str) -> None:
    """An answer in one piece."""
    data = text.encode()
    writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


class Server(socketserver.ThreadingTCPServer):
    """A thread for each connection, none of which holds up the end."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 100


def main() -> None:
    """Listen until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--fault")
    parser.add_argument("--told", default="{}")
    parser.add_argument("--only", type=int)
    parser.add_argument("--adapters", nargs="*", default=[])
    parser.add_argument("--pause", type=float, default=0.0)
    options, _ = parser.parse_known_args()
    if options.fault == "does not start":
        sys.exit("no such model")
    fake = FakeServer(options)

    class Connection(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                fake.serve(self.rfile, self.wfile)

    Server(("127.0.0.1", options.port), Connection).serve_forever()


if __name__ == "__main__":
    main()
