"""What measuring costs: tokens per second through the worker, beside vLLM's own throughput benchmark.

Same model, prompts and lengths, one LLM object, rounds alternated so that drift cancels. vLLM's benchmark samples at
temperature 1, so both do. The figures are written to docs/evidence/throughput.md.
"""

from __future__ import annotations

import random
import statistics
import time
from functools import partial
from pathlib import Path

from pytest_specdec.engines.host import WorkerEngine, backend_source
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.hardware import cores, processor
from pytest_specdec.models import resolve
from pytest_specdec.workloads.workload import Request, Workload

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "throughput.md"
ROUNDS = 12
OWN_BENCHMARK = '''

def own_benchmark(self):
    """Seconds that vllm/benchmarks/throughput.py takes for what was prepared."""
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.throughput import _run_vllm_requests

    requests = [
        SampleRequest({"prompt_token_ids": each["prompt_ids"]}, len(each["prompt_ids"]), each["max_tokens"])
        for each in self._requests
    ]
    return _run_vllm_requests(self._llm, requests, 1, True, False, False, False)[0]


VllmBackend.own_benchmark = own_benchmark
'''


class BenchmarkedWorker(WorkerEngine):
    """A worker that can also run vLLM's own benchmark."""

    def own_benchmark(self) -> float:
        """Seconds, by vLLM's own clock."""
        return float(self._call("own_benchmark"))


def test_measuring_costs_at_most_two_percent() -> None:
    """The ratio of the medians, ours over vLLM's own."""
    draw = random.Random(0)
    requests = [
        Request(tuple(draw.randrange(3, 1024) for _ in range(16)), 64, sampling={"temperature": 1.0}) for _ in range(16)
    ]
    workload = Workload("throughput", tuple(requests), len(requests))
    spec = EngineSpec(backend="vllm", target="constructed:small", max_model_len=512)
    engine = BenchmarkedWorker(spec, 300, 300, partial(resolve, cache=None), backend_source("vllm") + OWN_BENCHMARK)
    try:
        pairs = [(through_the_worker(engine, workload), engine.own_benchmark()) for _ in range(ROUNDS + 2)][2:]
    finally:
        engine.close()
    ours, theirs = (16 * 64 / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    PAGE.write_text(
        TEXT.format(ours=ours, theirs=theirs, ratio=ours / theirs, machine=f"{processor()}, {cores()} cores")
    )
    assert ours / theirs >= 0.98


def through_the_worker(engine: WorkerEngine, workload: Workload) -> float:
    """Seconds of one run as pytest sees it; collecting lies outside, as in a gate."""
    engine.prepare(workload)
    began = time.perf_counter()
    engine.run()
    seconds = time.perf_counter() - began
    engine.collect()
    return seconds


TEXT = f"""# What measuring costs

Tokens per second through the worker, timed in the pytest process as a gate times them, beside vLLM's own throughput
benchmark (`vllm.benchmarks.throughput`) on the same engine, model, prompts and lengths; {ROUNDS} rounds of each,
alternated, medians. Written by `tox -e evidence -- -k throughput`.

| | tokens/s |
|---|---|
| through the worker | {{ours:.1f}} |
| vLLM's own benchmark | {{theirs:.1f}} |
| ratio | {{ratio:.3f}} |

constructed:small in bfloat16, 16 requests of 16 + 64 tokens at once, {{machine}}.
"""
