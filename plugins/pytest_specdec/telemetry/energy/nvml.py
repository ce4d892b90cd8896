"""One GPU as NVML shows it, by UUID, and what speaks against a figure of its energy: throttling, heat, other programs.

What is not supported is None, and a lost GPU is a MeterFault where it matters. The module `pynvml` of the package
nvidia-ml-py is passed in, never imported when this file is. NVML does not create a CUDA context, so it may be asked
from the process that runs pytest. A watch looks when a round begins and ends and at an interval within it, beside the
measurement and not in its stead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pytest_specdec.telemetry.energy.meter import MakeTicker, MeterFault, Watch

Value = TypeVar("Value")
THROTTLE_REASONS = {
    "power cap": "nvmlClocksThrottleReasonSwPowerCap",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "software thermal slowdown": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "hardware thermal slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}


class Device:
    """One GPU."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Raises NVMLError if there is no such GPU."""
        self.uuid = uuid
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def _try(self, ask: Callable[[], Value]) -> Value | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None

    def has_energy_counter(self) -> bool:
        """Volta and later; some virtual GPUs do not."""
        return self._try(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) is not None

    def millijoules(self) -> int:
        """Energy since the driver was loaded. Raises MeterFault."""
        return int(self._require("energy counter", self._nvml.nvmlDeviceGetTotalEnergyConsumption))

    def watts(self) -> float:
        """Instant power. Raises MeterFault."""
        watts = self.instant_watts()
        if watts is None:
            raise MeterFault(f"NVML lost the instant power of {self.uuid}")
        return watts

    def instant_watts(self) -> float | None:
        """Instant power, never the 1 s average."""
        field = self._nvml.NVML_FI_DEV_POWER_INSTANT
        values = self._try(lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, [field]))
        if values is None or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal) / 1000

    def is_sliced(self) -> bool:
        """Whether MIG is on."""
        mode = self._try(lambda: self._nvml.nvmlDeviceGetMigMode(self._handle))
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def throttle_reasons(self) -> set[str]:
        """Why the clocks are held down at this moment."""
        reasons = self._try(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)) or 0
        return {name for name, bit in THROTTLE_REASONS.items() if reasons & getattr(self._nvml, bit)}

    def celsius(self) -> int | None:
        """Temperature of the GPU's core."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return self._try(lambda: int(self._nvml.nvmlDeviceGetTemperature(self._handle, sensor)))

    def process_memory(self) -> dict[int, int | None] | None:
        """Bytes held by each compute process, by process id; None for bytes that the driver does not tell."""
        processes = self._try(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return None if processes is None else {each.pid: each.usedGpuMemory for each in processes}

    def used_bytes(self) -> int | None:
        """Memory in use on the whole GPU, whoever holds it."""
        return self._try(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def utilisation_percent(self) -> int | None:
        """Share of the driver's last sample period in which a kernel ran."""
        return self._try(lambda: int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu))

    def clock_mhz(self, kind: str) -> int | None:
        """`kind`: "SM" or "MEM"."""
        clock = getattr(self._nvml, f"NVML_CLOCK_{kind}")
        return self._try(lambda: int(self._nvml.nvmlDeviceGetClockInfo(self._handle, clock)))

    def _require(self, what: str, ask: Callable[[Any], Value]) -> Value:
        try:
            return ask(self._handle)
        except self._nvml.NVMLError as error:
            raise MeterFault(f"NVML lost the {what} of {self.uuid}: {error}") from error


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
        """Look, and go on looking."""
        self._look()
        self._ticker.start()

    def end(self) -> None:
        """Look once more, and no longer."""
        self._look()
        self.close()

    def close(self) -> None:
        """End the looking at intervals."""
        self._ticker.stop()

    def flags(self) -> list[str]:
        """Told beforehand, throttled, warming, foreign."""
        throttled = [f"throttled: {', '.join(sorted(self._throttled))}"] if self._throttled else []
        foreign = [f"foreign processes: {', '.join(map(str, sorted(self._foreign)))}"] if self._foreign else []
        return [*self._told, *throttled, *self._warming(), *foreign]

    def celsius(self) -> dict[str, dict[str, int]]:
        """First and highest temperature of each GPU in °C, where it was read."""
        return {uuid: {"first": read[0], "highest": max(read)} for uuid, read in self._celsius.items()}

    def _warming(self) -> list[str]:
        rises = [max(read) - read[0] for read in self._celsius.values()]
        return [f"temperature rose by {max(rises)} °C"] if rises and max(rises) >= WARMING_CELSIUS else []

    def _look(self) -> None:
        for device in self._devices:
            self._throttled |= device.throttle_reasons()
            celsius = device.celsius()
            if celsius is not None:
                self._celsius.setdefault(device.uuid, []).append(celsius)
            if self._is_ours is not None:
                self._foreign |= {pid for pid in device.process_memory() or {} if not self._is_ours(pid)}
