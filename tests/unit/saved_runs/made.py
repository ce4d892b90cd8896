"""Records and files of saved runs as pytest-benchmark writes them, with rates that scatter as asked."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest_specdec.record import Record, from_json, to_json

TEST = "test_it.py::test_it[t-draft_model-g3-short]"
MACHINE = "Linux-CPython-3.11-64bit"
TOKENS = 1024


def seconds(mean: float, spread: float, rounds: int, seed: int) -> list[float]:
    """Round times in seconds, Gaussian, `spread` a share of the mean."""
    source = random.Random(seed)
    return [mean * (1 + spread * source.gauss(0, 1)) for _ in range(rounds)]


def record(took: Sequence[float] = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98), **changes: Any) -> Record:
    """A green record over these round times; `changes` are fields, or fields of a part, as in its JSON."""
    rounds = len(took)
    latencies = [" ".join(str(round(1000 * each * (10 + request))) for request in range(8)) for each in took]
    told: dict[str, Any] = {
        "schema": 2,
        "gate": "green",
        "asked": {
            "scenario": "short",
            "scenario_digest": "9d4ae2e0a3a3",
            "load": {"kind": "closed"},
            "engine": "vllm",
            "engine_key": "aaaaaaaaaaaa",
            "target": "t",
            "draft": "d",
            "method": "draft_model",
            "gamma": 3,
            "dtype": "bfloat16",
        },
        "workload": {"digest": "b4b143e2bf03", "concurrency": 8},
        "engine": {"versions": {"vllm": "0.26.0"}},
        "verdict": {"outcome": "identical"},
        "throughput": {
            "rounds": rounds,
            "tokens": TOKENS * rounds,
            "tokens_per_second": {"value": TOKENS * rounds / sum(took)},
            "per_round": {
                "tokens": [TOKENS] * rounds,
                "seconds": list(took),
                "drafts": [300] * rounds,
                "draft_tokens": [900] * rounds,
                "accepted_tokens": [720] * rounds,
                "ttft_us": latencies,
                "tpot_us": latencies,
                "e2e_us": latencies,
            },
        },
        "acceptance": {
            "drafts": {"value": 300 * rounds},
            "rate": {"value": 0.8},
            "mean_accepted_length": {"value": 3.4},
        },
        "latency": {
            "ttft_s": {"p50": 0.0135, "p99": 0.017, "n": 8 * rounds},
            "itl_s": {"p50": 0.002, "p99": 0.004, "n": 100},
        },
        "energy": {"joules_per_token": {"value": 0.5}, "joules_each_round": [512.0 * each for each in took]},
        "hardware": {
            "gpus": [{"uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "index": 0}],
            "driver": "580.159.04",
            "processor": "Xeon",
            "cores": 16,
        },
    }
    return from_json(merge(told, changes))


def timed(took: Sequence[float]) -> Record:
    """A record over these round times, made from one that was read: reading takes longer than comparing."""
    made = _record_of(len(took))
    rate = replace(made.throughput.tokens_per_second, value=TOKENS * len(took) / sum(took))
    rounds = replace(made.throughput.per_round, seconds=tuple(took))
    return replace(made, throughput=replace(made.throughput, tokens_per_second=rate, per_round=rounds))


@cache
def _record_of(rounds: int) -> Record:
    return record([1.0] * rounds)


def merge(told: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A record's JSON with other fields, those of its parts beside the parts' own."""
    parts = {
        name: merge(told.get(name) or {}, part) if isinstance(part, dict) else part for name, part in changes.items()
    }
    return {**told, **parts}


def figure(value: Any, reason: str | None = None) -> dict[str, Any]:
    """A figure as JSON."""
    return {"value": value, "reason": reason}


def file_text(records: Mapping[str, Record], partial: str = "") -> str:
    """pytest-benchmark's JSON with these records, by test. `partial`: why other gates are missing."""
    benches = [
        {
            "group": None,
            "name": test.rpartition("::")[2],
            "fullname": test,
            "params": None,
            "param": None,
            "extra_info": {"specdec": to_json(each)},
            "stats": {"min": 0.9, "max": 1.1, "mean": 1.0, "rounds": 6},
        }
        for test, each in records.items()
    ]
    content = {
        "machine_info": {"node": "host", "cpu": {"flags": ["sse"] * 150}},
        "commit_info": {"id": "0123456789abcdef", "dirty": False},
        "benchmarks": benches,
        "datetime": "2026-11-28T01:33:32.636623+00:00",
        "version": "5.3.1",
    }
    if partial:
        content["specdec"] = {"partial": True, "reason": partial}
    return json.dumps(content, indent=4)


def save(storage: Path, number: int, records: Mapping[str, Record], machine: str = MACHINE) -> Path:
    """Put a run into a storage under its number."""
    path = storage / machine / f"{number:04}_unversioned_20261128.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file_text(records), "utf-8")
    return path
