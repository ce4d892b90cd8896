"""One GPU as NVML shows it, by UUID, what speaks against a figure of its energy, and its power where it counts none.

What is not supported is None, and a lost GPU is a MeterFault where it matters. NVML creates no CUDA context, so it may
be asked from the process that runs pytest.

Without an energy counter, instant power is sampled and integrated: an estimate, and named so. The driver looks at a
part of the time (arXiv 2312.02741: a quarter of it on A100 and H100), so `relative_error` is null. The 1 s average
(nvmlDeviceGetPowerUsage on Ampere and later, GA100 excepted) is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.telemetry.meter import (
    IDLE_SECONDS,
    MakeTicker,
    MeterFault,
    OfTime,
    Reading,
    RoundsMeter,
    Watch,
)

THROTTLE_REASONS = {
    "power cap": "nvmlClocksThrottleReasonSwPowerCap",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "software thermal slowdown": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "hardware thermal slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}
INSTANT = "nvml instant power (estimate)"
SAMPLE_SECONDS = 0.02
REFRESH_SECONDS = 0.1
Sample = tuple[float, float]


class Device:
    """One GPU."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Raises NVMLError if there is no such GPU."""
        self.uuid = uuid
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def _ask(self, question: str, *arguments: Any) -> Any:
        """What NVML answers about this GPU, None where it does not."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{question}")(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def has_energy_counter(self) -> bool:
        """Volta and later; some virtual GPUs do not."""
        return self._ask("TotalEnergyConsumption") is not None

    def millijoules(self) -> int:
        """Energy since the driver was loaded. Raises MeterFault."""
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            raise MeterFault(f"NVML lost the energy counter of {self.uuid}: {error}") from error

    def watts(self) -> float:
        """Instant power. Raises MeterFault."""
        watts = self.instant_watts()
        if watts is None:
            raise MeterFault(f"NVML lost the instant power of {self.uuid}")
        return watts

    def instant_watts(self) -> float | None:
        """Instant power, never the 1 s average."""
        values = self._ask("FieldValues", [self._nvml.NVML_FI_DEV_POWER_INSTANT])
        if values is None or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal) / 1000

    def is_sliced(self) -> bool:
        """Whether MIG is on."""
        mode = self._ask("MigMode")
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def throttle_reasons(self) -> set[str]:
        """Why the clocks are held down at this moment."""
        reasons = self._ask("CurrentClocksThrottleReasons") or 0
        return {name for name, bit in THROTTLE_REASONS.items() if reasons & getattr(self._nvml, bit)}

    def celsius(self) -> int | None:
        """Temperature of the GPU's core."""
        return self._ask("Temperature", self._nvml.NVML_TEMPERATURE_GPU)  # type: ignore[no-any-return]

    def process_memory(self) -> dict[int, int | None] | None:
        """Bytes held by each compute process, by process id; None for bytes that the driver does not tell."""
        processes = self._ask("ComputeRunningProcesses")
        return None if processes is None else {each.pid: each.usedGpuMemory for each in processes}

    def used_bytes(self) -> int | None:
        """Memory in use on the whole GPU, whoever holds it."""
        return getattr(self._ask("MemoryInfo"), "used", None)

    def utilisation_percent(self) -> int | None:
        """Share of the driver's last sample period in which a kernel ran."""
        return getattr(self._ask("UtilizationRates"), "gpu", None)

    def clock_mhz(self, kind: str) -> int | None:
        """`kind`: "SM" or "MEM"."""
        return self._ask("ClockInfo", getattr(self._nvml, f"NVML_CLOCK_{kind}"))  # type: ignore[no-any-return]


LOOK_SECONDS = 0.25
WARMING_CELSIUS = 10


class GpuWatch(Watch):
    """Throttle reasons, temperature and foreign processes of the engine's GPUs."""

    def __init__(
        self, devices: Sequence[Device], is_ours: Callable[[int], bool] | None, told: Sequence[str], ticker: MakeTicker
    ) -> None:
        """`is_ours`: whether a process id belongs to the engine; None where NVML does not show its processes."""
        super().__init__(told)
        self._devices, self._is_ours = devices, is_ours
        self._throttled: set[str] = set()
        self._foreign: set[int] = set()
        self._celsius: dict[str, list[int]] = {}
        self._ticker = ticker(LOOK_SECONDS, self._look)

    def begin(self) -> None:
        self._look()
        self._ticker.start()

    def end(self) -> None:
        self._look()
        self.close()

    def close(self) -> None:
        self._ticker.stop()

    def flags(self) -> list[str]:
        throttled = [f"throttled: {', '.join(sorted(self._throttled))}"] if self._throttled else []
        foreign = [f"foreign processes: {', '.join(map(str, sorted(self._foreign)))}"] if self._foreign else []
        rises = [max(read) - read[0] for read in self._celsius.values()]
        warming = [f"temperature rose by {max(rises)} °C"] if rises and max(rises) >= WARMING_CELSIUS else []
        return [*self._told, *throttled, *warming, *foreign]

    def celsius(self) -> dict[str, dict[str, int]]:
        return {uuid: {"first": read[0], "highest": max(read)} for uuid, read in self._celsius.items()}

    def _look(self) -> None:
        for device in self._devices:
            self._throttled |= device.throttle_reasons()
            celsius = device.celsius()
            if celsius is not None:
                self._celsius.setdefault(device.uuid, []).append(celsius)
            if self._is_ours is not None:
                self._foreign |= {pid for pid in device.process_memory() or {} if not self._is_ours(pid)}


def integral(samples: Sequence[Sample]) -> float:
    """Joules under (second, watt) samples, by the trapezoid rule."""
    return sum(_pieces(samples))


def _pieces(samples: Sequence[Sample]) -> list[float]:
    return [(later - earlier) * (low + high) / 2 for (earlier, low), (later, high) in pairwise(samples)]


class PowerMeter(RoundsMeter):
    """Energy over the rounds as the integral of sampled power."""

    def __init__(self, watts: Mapping[str, Callable[[], float]], watch: Watch, time: OfTime) -> None:
        """`watts`: for each device a reading that raises MeterFault."""
        super().__init__(watch, time)
        self._watts = watts
        self._ticker = time.ticker(SAMPLE_SECONDS, self._sample)
        self._samples: list[Sample] = []
        self._idle_watts = 0.0

    def start(self) -> None:
        self._begin_samples()
        self._sleep(IDLE_SECONDS)
        joules, seconds = self._end_samples()
        self._idle_watts = joules / seconds if seconds else 0.0

    def begin_round(self) -> None:
        self._watch.begin()
        self._begin_samples()

    def end_round(self) -> None:
        joules, seconds = self._end_samples()
        self._watch.end()
        grown = accumulate(_pieces(self._samples), initial=0.0)
        times = [at_s - self._samples[0][0] for at_s, _ in self._samples]
        self._add(joules, seconds, [list(zip(times, grown, strict=False))])

    def stop(self, tokens: int) -> EnergyPart:
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
        samples = self._samples = sorted(self._samples)
        return (integral(samples), samples[-1][0] - samples[0][0]) if samples else (0.0, 0.0)

    def _sample(self) -> None:
        self._guard(lambda: self._samples.append((self._clock(), sum(read() for read in self._watts.values()))))
