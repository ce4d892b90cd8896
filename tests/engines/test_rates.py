"""A sweep of request rates on real vLLM: every rate is judged, and the highest that each arm sustains is found.

How many requests a second an engine completes is the machine's, and so is how many are sent. So nothing is asked of the
lower rate but that what is said of it follows from its figures. The higher one is beyond every machine.
"""

import pytest

from pytest_specdec.run.measure import NEVER_SUSTAINED

LOW, HIGH = 30.0, 100_000.0

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="constructed:tiny?dtype=float32",
        dtype="float32",
        max_model_len=512,
        options={"max_num_seqs": 8},
        environment={"OMP_NUM_THREADS": "1"},  # matrices this small are not worth a second
        scenario="scenarios/rates.toml",
    ),
]


@pytest.mark.thorough
@pytest.mark.specdec(draft="constructed:tiny:draft?dtype=float32", method="draft_model", gamma=2)
def test_where_both_arms_saturate(specdec, vllm_spec, scenario):
    """Every verdict is identical; what is sustained was completed, and the saturation rate is the highest of those."""
    record = specdec(vllm_spec, scenario)
    sweep = record.load.sweep
    arms = ((sweep.target_points, sweep.target_saturation_per_second), (sweep.points, sweep.saturation_per_second))
    for points, found in arms:
        assert [(point.asked, point.verdict) for point in points] == [(LOW, "identical"), (HIGH, "identical")]
        assert [point.sustained is True for point in points] == [keeps_up(point, sweep) for point in points]
        assert points[1].sustained is not True
        assert (found.value, found.reason) == saturation(*points)
    assert record.load.played["rate"] == LOW


def keeps_up(point, sweep):
    """Whether as many requests a second were completed as a sustained rate needs."""
    return point.completed >= sweep.sustained_share * point.asked


def saturation(low, high):
    """What follows from the two points; an inconclusive one, whose rate the machine could not send, says so."""
    inconclusive = [point.reason for point in (low, high) if point.sustained is None]
    assert all(reason.startswith("inconclusive: asked ") for reason in inconclusive)
    if low.sustained is False:
        return None, NEVER_SUSTAINED
    return (None, inconclusive[0]) if inconclusive else (LOW, None)
