"""Eight targets on the GPUs that there are: with `-n 2` on two, each worker of pytest-xdist has a card of its own.

Correctness alone, so without CUDA graphs, which take long to make; each answer is held against the truth.
"""

import pytest

TARGETS = [f"constructed:small?memory=24&map_seed={seed}" for seed in range(8)]
OPTIONS = {"enable_prefix_caching": True, "max_num_seqs": 32, "enforce_eager": True}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
]


def on_every_target(function):
    """A mark of the test for each target."""
    for target in TARGETS:
        mark = pytest.mark.specdec(
            target=target, max_model_len=2048, options=OPTIONS, scenario="scenarios/gpu/thirty-two.toml"
        )
        function = mark(function)
    return function


@on_every_target
def test_target(is_identical_and_true, vllm_ar, scenario):
    """Its own map, its own engine."""
    is_identical_and_true(vllm_ar, scenario)
