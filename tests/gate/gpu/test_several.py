"""On two GPUs: a pair with memory at 8B split over both, with CUDA graphs, and the same pair on one card beside it.

Each answer is held against the truth, and the energy is that of all cards of the engine and of no other. Other ways to
spread an engine are asked of a small pair: it is gated, or vLLM's refusal is why the test is skipped.
"""

import os
import signal
import threading
from importlib.util import find_spec

import psutil
import pytest

from pytest_specdec.errors import EngineDied
from pytest_specdec.hardware import gpus

SIZES = [f"scenarios/gpu/{name}.toml" for name in ("one", "thirty-two")]
WARM = {"enable_prefix_caching": True, "max_num_batched_tokens": 256, "max_num_seqs": 32}
LARGE, SMALL = "constructed:llama-8b{}?memory=48", "constructed:small{}?memory=24"
EAGLE = {"draft": LARGE.format(":eagle") + "&alpha=0.8", "method": "eagle", "gamma": (4, 2)}
DRAFT = {"draft": LARGE.format(":draft") + "&layers=2", "method": "draft_model", "gamma": (4, 2)}
OWN_EMBEDDING = {"draft": SMALL.format(":eagle") + "&alpha=0.8", "method": "eagle", "gamma": 2}

pytestmark = [pytest.mark.gpu, pytest.mark.engine("vllm")]
two = pytest.mark.multi_gpu(2)
thorough = pytest.mark.thorough
has_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not here: pip install ray")


def large(cards, **drafting):
    """The mark of the 8B pair, split over so many cards."""
    options = {**WARM, "tensor_parallel_size": cards}
    return pytest.mark.specdec(target=LARGE.format(""), max_model_len=2048, options=options, scenario=SIZES, **drafting)


def small(spread, **drafting):
    """The mark of the small pair, spread as these options say."""
    return pytest.mark.specdec(
        target=SMALL.format(""),
        max_model_len=2048,
        options={**WARM, **spread},
        scenario="scenarios/gpu/thirty-two.toml",
        **drafting,
    )


def on_cards(record, cards):
    """The first visible cards and no others carry the energy."""
    assert sorted(record.energy.scope) == sorted(gpu.uuid for gpu in gpus().visible[:cards])


@two
@thorough
@large(2)
def test_target_only_on_two(is_identical_and_true, vllm_ar, scenario):
    """The target-only baseline of both drafters."""
    on_cards(is_identical_and_true(vllm_ar, scenario), 2)


@two
@thorough
@large(2, **EAGLE)
def test_eagle_on_two(is_identical_and_true, vllm_spec, scenario):
    """vLLM splits the head as it splits the target."""
    on_cards(is_identical_and_true(vllm_spec, scenario), 2)


@two
@thorough
@large(2, **DRAFT, speculative_options={"draft_tensor_parallel_size": 2})
def test_draft_model_on_two(is_identical_and_true, vllm_spec, scenario):
    """Target and drafter are split alike."""
    on_cards(is_identical_and_true(vllm_spec, scenario), 2)


@thorough
@large(1)
def test_target_only_on_one(is_identical_and_true, vllm_ar, scenario):
    """The target-only baseline on one card."""
    on_cards(is_identical_and_true(vllm_ar, scenario), 1)


@thorough
@large(1, **EAGLE)
def test_eagle_on_one(is_identical_and_true, vllm_spec, scenario):
    """The same head."""
    on_cards(is_identical_and_true(vllm_spec, scenario), 1)


@thorough
@large(1, **DRAFT)
def test_draft_model_on_one(is_identical_and_true, vllm_spec, scenario):
    """The same drafter."""
    on_cards(is_identical_and_true(vllm_spec, scenario), 1)


@two
@small({"data_parallel_size": 2})
def test_data_parallel(is_identical_and_true, vllm_ar, scenario):
    """Two replicas in one engine; vLLM 0.26 has them behind its server only."""
    on_cards(is_identical_and_true(vllm_ar, scenario), 2)


@two
@small({"pipeline_parallel_size": 2})
def test_pipeline_target_only(is_identical_and_true, vllm_ar, scenario):
    """Half of the layers on each card."""
    on_cards(is_identical_and_true(vllm_ar, scenario), 2)


@two
@small({"pipeline_parallel_size": 2}, **OWN_EMBEDDING)
def test_pipeline_eagle(is_identical_and_true, vllm_spec, scenario):
    """The head is on the last card, and cannot borrow the embedding of the first: it has its own, and is accepted."""
    record = is_identical_and_true(vllm_spec, scenario)
    on_cards(record, 2)
    assert record.acceptance.rate.value > 0.5


@two
@small({"tensor_parallel_size": 2})
def test_small_target_only_on_two(is_identical_and_true, vllm_ar, scenario):
    """The target-only baseline of a drafter on one card."""
    on_cards(is_identical_and_true(vllm_ar, scenario), 2)


@two
@small(
    {"tensor_parallel_size": 2},
    draft=SMALL.format(":draft"),
    method="draft_model",
    gamma=2,
    speculative_options={"draft_tensor_parallel_size": 1},
)
def test_draft_model_whole_on_each(is_identical_and_true, vllm_spec, scenario):
    """The target is split and the drafter is not; vLLM 0.26 refuses that."""
    on_cards(is_identical_and_true(vllm_spec, scenario), 2)


ACTOR = ("RayWorkerProc", "VLLM::Worker")
RAY = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}


@two
@has_ray
@small(RAY)
def test_ray_target_only(is_identical_and_true, vllm_ar, scenario):
    """Ray's actors hold the cards: processes of the engine, though not of its process group."""
    on_cards(is_identical_and_true(vllm_ar, scenario), 2)


@two
@has_ray
@small(RAY, **OWN_EMBEDDING)
def test_ray_eagle(is_identical_and_true, vllm_spec, scenario):
    """The same with a drafter."""
    on_cards(is_identical_and_true(vllm_spec, scenario), 2)


@two
@has_ray
@small(RAY, **OWN_EMBEDDING)
def test_a_killed_ray_worker_is_named(specdec_session, vllm_spec, scenario):
    """In mid-run: the run ends with an error that says so, and nothing of the engine stays behind."""
    workload = specdec_session.workload(vllm_spec, scenario)
    engine = specdec_session.pool.awake(vllm_spec)
    started = psutil.Process(engine.description.pid).children(recursive=True)
    worker = next(each for each in started if any(name in " ".join(each.cmdline()) for name in ACTOR))
    engine.prepare(workload)
    worker.suspend()  # however fast the machine is, the run is not over when it dies
    threading.Timer(2.0, os.kill, (worker.pid, signal.SIGKILL)).start()
    with (
        pytest.raises(EngineDied, match=r"(?s)died while run.*a process of vLLM's executor has died"),
        specdec_session.pool.using(vllm_spec),
    ):
        engine.run()
    assert [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
