"""This package's client as a program: for each line "RATE COUNT" it sends COUNT requests at RATE a second.

python ours.py URL
"""

from __future__ import annotations

import sys
from contextlib import suppress

from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.workloads.workload import Request, Workload

SERVER = {"url": sys.argv[1], "protocol": "vllm", "vocabulary": 100}


def main() -> None:
    """Obey until standard input ends."""
    engine = ServedEngine(EngineSpec(backend="server", target="answering", server=SERVER), 10, 30, str)
    print("ready", flush=True)
    for line in sys.stdin:
        rate, count = float(line.split()[0]), int(line.split()[1])
        due = tuple(at / rate for at in range(count))
        engine.prepare(Workload("load", (Request((5,), 8),) * count, count, due))
        engine.run()
        with suppress(EngineError):  # of a rate that is too high requests fail; the server has counted those that came
            engine.collect()
        print("done", flush=True)


if __name__ == "__main__":
    main()
