"""The highest rate that a client keeps: ours beside serving benchmarks, against one small server.

The server answers at once and judges: it notes when each request arrived, and a request is late if it came more than
5 ms after its place in an even schedule. A rate is kept if at most 1 % are late. Clients run in processes of their
own, on the same cores as the server, one after the other: ours, vLLM's, and GuideLLM where the environment variable
GUIDELLM names its command. The figures are written to docs/evidence/load-generator.md.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_specdec.engines.server.process import free_port
from pytest_specdec.hardware import cores, processor

HERE = Path(__file__).with_name("load")
PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "load-generator.md"
SECONDS = float(os.environ.get("LOAD_SECONDS", "5"))
LATE_S = 0.005
MOST_LATE = 0.01
FIRST_RATE = 200.0
STEPS = 5
ENOUGH = 20_000.0  # beyond that the small server itself loses connections
TWICE = 2.0
NAMES = {
    "vllm_bench.py": "vLLM's serving benchmark (`vllm.benchmarks.serve`)",
    "guidellm_bench.py": "GuideLLM",
}


class Client:
    """A client in a process of its own, told rates on its standard input."""

    def __init__(self, program: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / program), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._await("ready")

    def send(self, rate: float, seconds: float = SECONDS) -> None:
        """Send at this rate for so many seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rate} {int(rate * seconds)}\n")
        self._process.stdin.flush()
        self._await("done")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _await(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the client ended before it said {word!r}")


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of the server that answers at once."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(HERE / "answering_server.py"), str(port)])
    while not listens(port):
        assert process.poll() is None, "the server ended"
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def listens(port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def programs() -> list[str]:
    """The others that are here, then ours."""
    others = [program for program in NAMES if program != "guidellm_bench.py" or "GUIDELLM" in os.environ]
    return [*others, "ours.py"]


def arrivals(url: str) -> list[float]:
    """When requests arrived since the last call, in seconds."""
    with urllib.request.urlopen(f"{url}/arrivals", timeout=600) as answer:
        return list(json.load(answer))


def late_share(moments: list[float], rate: float) -> float:
    """The share that came later than 5 ms after an even schedule, which begins with the most punctual request."""
    offsets = [at - place / rate for place, at in enumerate(sorted(moments))]
    first = min(offsets)
    return sum(offset - first > LATE_S for offset in offsets) / len(offsets)


def keeps(client: Client, url: str, rate: float) -> bool:
    """Whether at most 1 % were late, and all were sent."""
    arrivals(url)
    client.send(rate)
    moments = arrivals(url)
    return len(moments) >= int(rate * SECONDS) and late_share(moments, rate) <= MOST_LATE


def highest_rate(client: Client, url: str) -> float:
    """Doubled until it is not kept, then halved between; requests a second, and no more than is enough to be told."""
    client.send(FIRST_RATE)
    kept, lost = 0.0, FIRST_RATE
    while lost <= ENOUGH and keeps(client, url, lost):
        kept, lost = lost, lost * 2
    if lost > ENOUGH:
        return kept
    for _ in range(STEPS):
        middle = (kept + lost) / 2
        kept, lost = (middle, lost) if keeps(client, url, middle) else (kept, middle)
    return kept


def test_lateness_is_seen() -> None:
    """The judge itself: an even schedule has none late, a stall of 20 ms makes late what it held up."""
    even = [at / 100 for at in range(100)]
    assert late_share(even, 100) == 0
    assert late_share([at + (0.02 if place >= 90 else 0) for place, at in enumerate(even)], 100) == 0.1


def test_ten_thousand_requests_at_200_a_second_are_sent_at_200_a_second(server: str) -> None:
    """Within 0.5 %, by the server's clock, in real time."""
    client = Client("ours.py", server)
    try:
        client.send(FIRST_RATE)
        arrivals(server)
        client.send(200.0, seconds=50)
    finally:
        client.close()
    moments = sorted(arrivals(server))
    assert len(moments) == 10_000
    assert (len(moments) - 1) / (moments[-1] - moments[0]) == pytest.approx(200, rel=0.005)


def test_the_client_keeps_twice_the_rate_of_a_serving_benchmark(server: str) -> None:
    """Each client's highest rate, one client at a time, then the page."""
    rates = {}
    for program in programs():
        client = Client(program, server)
        try:
            rates[program] = highest_rate(client, server)
        finally:
            client.close()
    ours, theirs = rates.pop("ours.py"), max(rates.values())
    rows = "\n".join(f"| {NAMES[program]} | {rate:.0f} |" for program, rate in rates.items())
    PAGE.write_text(TEXT.format(ours=ours, rows=rows, ratio=ours / theirs, machine=f"{processor()}, {cores()} cores"))
    assert ours / theirs >= TWICE


TEXT = f"""# The load generator

The highest rate at which at most 1 % of the requests arrive more than 5 ms late, by the clock of a small server that
answers each with a stream of eight tokens at once. Client and server share the cores; clients run one after the other,
each rate for {SECONDS:g} s, doubled from {FIRST_RATE:g} and then halved between; above {ENOUGH:g} nothing is tried.
Lateness is counted from an even schedule, so a client that falls behind stays late. In the same run 10,000 requests
asked at 200/s are held to 200/s ± 0.5 % by that server's clock.
Written by `tox -e evidence -- -k load_generator`.

| | requests/s |
|---|---|
| this package | {{ours:.0f}} |
{{rows}}
| ours over the best of the others | {{ratio:.2f}} |

{{machine}}. Our client reads no JSON while the clock runs: it notes when each piece of an answer came, and reads later.
"""
