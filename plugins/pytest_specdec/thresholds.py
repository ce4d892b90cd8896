"""How much worse a figure may be than it was: "tokens_per_second:5%", "ttft_p99:10ms".

Each figure knows which way is better and in which units its absolute thresholds may be given. A number without a unit
is refused, since "5" may mean a percentage to its writer and seconds to its reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_specdec.errors import did_you_mean

BYTES = {"bytes": 1.0, "MB": 1e6, "MiB": 2.0**20, "GB": 1e9, "GiB": 2.0**30}
LATENCIES = ("ttft", "tpot", "itl", "chunk_gap", "e2e")
PERCENTILES = (50, 90, 95, 99)
WRITTEN = re.compile(r"(?P<number>[0-9.]+(?:e-?[0-9]+)?)\s*(?P<unit>\S*)")


@dataclass(frozen=True)
class Metric:
    """A figure that can be gated.

    `units`: those of an absolute threshold, as multiples of the record's own unit. `shown_in`: the one it is shown in.
    `place`: of its figure in the record. `latency`, `percentile`: instead of it, ("ttft", 99) of ttft_p99.
    """

    name: str
    more_is_better: bool
    units: Mapping[str, float]
    shown_in: str = ""
    place: str = ""
    latency: str = ""
    percentile: int = 0


METRICS = {
    metric.name: metric
    for metric in (
        Metric("tokens_per_second", True, {"tokens/s": 1.0}, "tokens/s", "throughput.tokens_per_second"),
        Metric("speedup", True, {}, "×", "speedup.ratio"),
        Metric("joules_per_token", False, {"mJ": 1e-3, "J": 1.0}, "J", "energy.joules_per_token"),
        Metric("acceptance_rate", True, {}, place="acceptance.rate"),
        Metric("mean_accepted_length", True, {"tokens": 1.0}, "tokens", "acceptance.mean_accepted_length"),
        *(
            Metric(f"{latency}_p{percent}", False, {"us": 1e-6, "ms": 1e-3, "s": 1.0}, "ms", "", latency, percent)
            for latency in LATENCIES
            for percent in PERCENTILES
        ),
        Metric("peak_gpu_bytes", False, BYTES, "GiB", "memory.peak_gpu_bytes"),
        Metric("peak_host_bytes", False, BYTES, "GiB", "memory.peak_host_bytes"),
        Metric("goodput", True, {}, place="load.goodput.share"),
        Metric("saturation_per_second", True, {"requests/s": 1.0}, "requests/s", "load.sweep.saturation_per_second"),
    )
}


@dataclass(frozen=True)
class Threshold:
    """The most that a metric may be worse: a share of the baseline run if `relative`, else in the record's own unit.

    `text`: as it was written. `gates`: whether missing it fails the test, or the change is only shown.
    """

    metric: Metric
    most: float
    relative: bool
    text: str
    gates: bool = True

    def __str__(self) -> str:
        """As it was written."""
        return f"{self.metric.name}:{self.text}"

    @classmethod
    def parse(cls, written: str) -> Threshold:
        """From "metric:5%" or "metric:10ms". Raises ValueError with the remedy."""
        name, colon, amount = (part.strip() for part in written.partition(":"))
        if not colon or not amount:
            raise ValueError(f"{written!r} is not of the form metric:threshold, e.g. tokens_per_second:5%")
        if name not in METRICS:
            raise ValueError(f"unknown metric {name!r}; {did_you_mean(name, METRICS, f'known: {metric_names()}')}")
        metric = METRICS[name]
        most, relative = _amount(metric, amount)
        return cls(metric, most, relative, amount)


def shown(name: str) -> Threshold:
    """No threshold: the change of this metric is shown, and fails nothing."""
    return Threshold(METRICS[name], 0.0, True, "", gates=False)


SHOWN = tuple(map(shown, ("tokens_per_second", "joules_per_token", "mean_accepted_length", "ttft_p99")))


def metric_names() -> str:
    """All of them, in a line."""
    latencies = "|".join(LATENCIES)
    plain = [name for name in METRICS if not name.startswith(LATENCIES)]
    return f"{', '.join(plain)}, ({latencies})_p({'|'.join(map(str, PERCENTILES))})"


def _amount(metric: Metric, text: str) -> tuple[float, bool]:
    """The number in the record's own unit, and whether it is a share."""
    written = WRITTEN.fullmatch(text)
    allowed = ["%", *metric.units]
    if written is None or written["unit"] not in allowed:
        raise ValueError(f"{text!r} is no threshold of {metric.name}: give a number with {' or '.join(allowed)}")
    number, unit = float(written["number"]), written["unit"]
    if not math.isfinite(number):
        raise ValueError(f"{written['number']!r} is no finite number")
    return (number / 100, True) if unit == "%" else (number * metric.units[unit], False)
