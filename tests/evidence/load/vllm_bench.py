"""vLLM's serving benchmark as a program: for each line "RATE COUNT" it sends COUNT requests at RATE a second.

    python vllm_bench.py URL

Its gaps are drawn from a gamma distribution; at so high a burstiness they are as good as equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys

from vllm.benchmarks.datasets import SampleRequest
from vllm.benchmarks.serve import TaskType, benchmark

EQUAL_GAPS = 1e9
URL = sys.argv[1]


async def send(rate: float, count: int) -> None:
    """One run of the benchmark's own function."""
    await benchmark(
        task_type=TaskType.GENERATION,
        endpoint_type="openai",
        api_url=f"{URL}/v1/completions",
        base_url=URL,
        model_id="answering",
        model_name="answering",
        tokenizer=None,
        input_requests=[SampleRequest("a", 1, 8)] * count,
        logprobs=None,
        request_rate=rate,
        burstiness=EQUAL_GAPS,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=["ttft"],
        selected_percentiles=[99.0],
        ignore_eos=True,
        goodput_config_dict={},
        max_concurrency=None,
        lora_modules=None,
        extra_headers=None,
        extra_body=None,
        ready_check_timeout_sec=0,
    )


def main() -> None:
    """Obey until standard input ends; the benchmark's own report is not shown."""
    print("ready", flush=True)
    for line in sys.stdin:
        rate, count = float(line.split()[0]), int(line.split()[1])
        with contextlib.redirect_stdout(io.StringIO()):
            asyncio.run(send(rate, count))
        print("done", flush=True)


if __name__ == "__main__":
    main()
