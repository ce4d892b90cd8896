"""Thresholds as they are written: metric, number, unit; a number that could be read two ways is refused."""

from __future__ import annotations

import pytest

from pytest_specdec.thresholds import Threshold


@pytest.mark.parametrize(
    ("written", "most", "relative", "more_is_better"),
    [
        ("tokens_per_second:5%", 0.05, True, True),
        ("joules_per_token: 0.5 %", 0.005, True, False),
        ("ttft_p99:10ms", 0.010, False, False),
        ("mean_accepted_length:0.1tokens", 0.1, False, True),
        ("peak_gpu_bytes:2GiB", 2.0**31, False, False),
    ],
)
def test_a_threshold_is_a_share_or_in_the_record_s_unit(
    written: str, most: float, relative: bool, more_is_better: bool
) -> None:
    """And the metric knows which way is worse."""
    threshold = Threshold.parse(written)
    assert (threshold.most, threshold.relative) == (pytest.approx(most), relative)
    assert threshold.metric.more_is_better == more_is_better


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tokens_per_second:5", "give a number with % or tokens/s"),
        ("ttft_p99:10J", "give a number with % or us or ms or s"),
        ("speedup:0.1x", "give a number with %"),
        ("ttft_p98:5%", "did you mean 'ttft_p9"),
        ("nonsense:5%", "known: tokens_per_second, speedup"),
        ("tokens_per_second", "not of the form metric:threshold"),
        ("tokens_per_second:-5%", "is no threshold of tokens_per_second"),
        ("tokens_per_second:1.2.3%", "could not convert"),
    ],
)
def test_a_wrong_threshold_says_what_would_be_right(written: str, said: str) -> None:
    """ "mean:5" means five seconds to one tool and five percent to its reader: a bare number is refused."""
    with pytest.raises(ValueError, match=said):
        Threshold.parse(written)
