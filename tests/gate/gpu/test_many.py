"""On a GPU: what many requests at once, and few, lose to an engine's settings and to the load, not to speculation.

vLLM captures CUDA graphs of up to 512 tokens; a step of 128 requests has 640 with γ = 4. And where all answers are as
long as each other, those of the target alone end together and the next prompts are read in one step; with speculation
each ends by itself, and its place is filled in a step of its own, which is no decoding step of a graph. So here graphs
reach the largest step, beside those by default, and answers have lengths of their own, as a user's have.
"""

import pytest

MEMORY = "memory=48"
RESIDENT = {"enable_sleep_mode": False, "gpu_memory_utilization": 0.42, "max_num_seqs": 256}
LARGER_GRAPHS = RESIDENT | {"compilation_config": {"max_cudagraph_capture_size": 1280}}  # 256 · (4 + 1)
SMALLEST_STEPS = (6, 9, 10, 12, 15, 20)  # of two to four requests with γ of 2 and 4; the others are vLLM's own
SIZES = sorted({*SMALLEST_STEPS, 1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)})
OWN_SIZES = RESIDENT | {"compilation_config": {"cudagraph_capture_sizes": SIZES}}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target=f"constructed:llama-8b?{MEMORY}",
        draft=f"constructed:llama-8b:eagle?{MEMORY}&alpha=0.8",
        method="eagle",
        gamma=(4, 2),
        max_model_len=2048,
        scenario=["scenarios/gpu/many.toml", "scenarios/gpu/lengths.toml"],
    ),
]


@pytest.mark.specdec(options=LARGER_GRAPHS)
def test_graphs_for_the_largest_step(specdec, vllm_spec, scenario):
    """Of both arms."""
    assert specdec(vllm_spec, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.specdec(options=RESIDENT)
def test_graphs_by_default(specdec, vllm_spec, scenario):
    """The same in the same session; where a step is larger than the largest graph the record warns of it."""
    record = specdec(vllm_spec, scenario)
    assert record.verdict.known_truth.wrong.value == 0
    larger = record.workload.concurrency * (record.asked.gamma + 1) > 512
    assert larger == any("CUDA graphs end at" in each for each in record.warnings)


@pytest.mark.specdec(options=RESIDENT, scenario="scenarios/gpu/few.toml")
@pytest.mark.specdec(options=OWN_SIZES, scenario="scenarios/gpu/few.toml")
def test_graphs_for_the_smallest_steps(specdec, vllm_spec, scenario):
    """vLLM before 0.29 takes a piecewise graph where one is nearer than the next full one, a multiple of γ + 1.

    So the 12 tokens of four requests with γ = 2 take that of 16, not the full one of 18, and the 15 of three with
    γ = 4 not that of 20; unless there is one of their own size. The record warns of either.
    """
    record = specdec(vllm_spec, scenario)
    assert record.verdict.known_truth.wrong.value == 0
    version = tuple(map(int, record.engine.versions["vllm"].split(".")[:2]))
    piecewise = (record.workload.concurrency, record.asked.gamma) in {(4, 2), (3, 4)} and dict(
        vllm_spec.options
    ) == RESIDENT
    assert any("piecewise CUDA graph" in each for each in record.warnings) == (piecewise and version < (0, 29))
