"""A meter for GPUs without an energy counter: instant power, sampled and integrated. An estimate, and named so.

The driver renews the field only so often and looks at a part of the time (arXiv 2312.02741: a quarter of it on A100 and
H100), so the error has no bound that could be stated: `relative_error` is null. The 1 s average
(nvmlDeviceGetPowerUsage on Ampere and later, GA100 excepted) is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.telemetry.energy.meter import IDLE_SECONDS, Clock, MakeTicker, Reading, RoundsMeter, Sleep, Watch

INSTANT = "nvml instant power (estimate)"
SAMPLE_SECONDS = 0.02
REFRESH_SECONDS = 0.1
Sample = tuple[float, float]


def integral(samples: Sequence[Sample]) -> float:
    """Joules under (second, watt) samples, by the trapezoid rule."""
    return sum((later - earlier) * (low + high) / 2 for (earlier, low), (later, high) in pairwise(samples))


class PowerMeter(RoundsMeter):
    """Energy over the rounds as the integral of sampled power."""

    def __init__(
        self, watts: Mapping[str, Callable[[], float]], watch: Watch, clock: Clock, sleep: Sleep, ticker: MakeTicker
    ) -> None:
        """`watts`: for each device a reading that raises MeterFault."""
        super().__init__(watch, clock, sleep)
        self._watts = watts
        self._ticker = ticker(SAMPLE_SECONDS, self._sample)

    def _reset(self) -> None:
        super()._reset()
        self._samples: list[Sample] = []
        self._idle_watts = 0.0

    def start(self) -> None:
        """Idle watts over a second."""
        self._reset()
        self._begin_samples()
        self._sleep(IDLE_SECONDS)
        joules, seconds = self._end_samples()
        self._idle_watts = joules / seconds if seconds else 0.0

    def begin_round(self) -> None:
        """Sample from here."""
        self._watch.begin()
        self._begin_samples()

    def end_round(self) -> None:
        """Sample to here, and add up."""
        joules, seconds = self._end_samples()
        self._watch.end()
        self._add(joules, seconds)

    def stop(self, tokens: int) -> EnergyPart:
        """Joules of all rounds that ended, as an estimate."""
        self._ticker.stop()
        return super().stop(tokens)

    def _reading(self) -> Reading:
        scope = tuple(self._watts)
        edges = (self._idle_watts, REFRESH_SECONDS, None)
        return Reading(INSTANT, scope, self._joules, self._seconds, *edges, tuple(self._each_round))

    def _begin_samples(self) -> None:
        self._samples.clear()
        self._sample()
        self._ticker.start()

    def _end_samples(self) -> Sample:
        self._sample()
        self._ticker.stop()
        samples = sorted(self._samples)
        return (integral(samples), samples[-1][0] - samples[0][0]) if samples else (0.0, 0.0)

    def _sample(self) -> None:
        self._guard(lambda: self._samples.append((self._clock(), sum(read() for read in self._watts.values()))))
