"""One GPU as NVML shows it, by UUID: its energy counter and power, heat, clocks, memory and processes.

What is not supported is None, and a lost GPU is a MeterFault where it matters. NVML creates no CUDA context, so it may
be asked from the process that runs pytest.
"""

from __future__ import annotations

from typing import Any

THROTTLE_REASONS = {
    "power cap": "nvmlClocksThrottleReasonSwPowerCap",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "software thermal slowdown": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "hardware thermal slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}


class MeterFault(Exception):
    """A source of readings failed; the message says which, and becomes the reason in the record."""


class Device:
    """One GPU."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Raises NVMLError if there is no such GPU."""
        self.uuid = uuid
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def _ask(self, question: str, *arguments: Any) -> Any:
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
