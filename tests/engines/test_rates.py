"""A sweep of request rates on real vLLM: every rate is judged, and the highest that each arm sustains is found."""

import pytest

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="constructed:tiny?dtype=float32",
        dtype="float32",
        max_model_len=512,
        options={"max_num_seqs": 8},
        scenario="scenarios/rates.toml",
    ),
]


@pytest.mark.specdec(draft="constructed:tiny:draft?dtype=float32", method="draft_model", gamma=2)
def test_where_both_arms_saturate(specdec, vllm_spec, scenario):
    """Six hundred requests a second are beyond both, thirty beyond neither; the verdict is taken at each."""
    record = specdec(vllm_spec, scenario)
    sweep = record.load.sweep
    assert sweep.target_saturation_per_second.value == sweep.saturation_per_second.value == 30.0
    for points in (sweep.target_points, sweep.points):
        assert [point.sustained for point in points] == [True, False]
        assert points[-1].completed < 570
    assert {point.verdict for point in sweep.points} == {"identical"}
