"""What speaks against a figure of energy: clocks held down, heat, and other programs on the same GPU.

Looked at when a round begins and ends and at an interval within it, beside the measurement and not in its stead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_specdec.telemetry.energy.meter import MakeTicker, Watch
from pytest_specdec.telemetry.energy.nvml import Device

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
