"""One GPU as NVML shows it, by UUID: what is not supported is None, and a lost GPU is a MeterFault where it matters.

The module `pynvml` of the package nvidia-ml-py is passed in, never imported when this file is. NVML does not create a
CUDA context, so it may be asked from the process that runs pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pytest_specdec.telemetry.energy.meter import MeterFault

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
