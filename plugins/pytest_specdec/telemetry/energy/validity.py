"""What speaks against a figure of energy: clocks held down, heat, and other programs on the same GPU.

Looked at when a round begins and ends and at an interval within it, beside the measurement and not in its stead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pytest_specdec.telemetry.energy.nvml import Device
from pytest_specdec.telemetry.energy.ticker import MakeTicker

LOOK_SECONDS = 0.25
WARMING_CELSIUS = 10


class Watch(Protocol):
    """Looks on while a meter measures."""

    def begin(self) -> None:
        """A round begins."""

    def end(self) -> None:
        """A round has ended."""

    def close(self) -> None:
        """Look no longer, also where a round has not ended because the engine died in it."""

    def flags(self) -> list[str]:
        """What was seen, in words; empty if nothing speaks against the figures."""

    def celsius(self) -> dict[str, dict[str, int]]:
        """First and highest temperature of each device in °C."""


class Blind:
    """Sees nothing of its own, and says what is known beforehand."""

    def __init__(self, told: Sequence[str]) -> None:
        self._told = list(told)

    def begin(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def flags(self) -> list[str]:
        """What it was told."""
        return self._told

    def celsius(self) -> dict[str, dict[str, int]]:
        """No temperature."""
        return {}


class GpuWatch:
    """Throttle reasons, temperature and foreign processes of the engine's GPUs."""

    def __init__(
        self, devices: Sequence[Device], is_ours: Callable[[int], bool] | None, told: Sequence[str], ticker: MakeTicker
    ) -> None:
        """`is_ours`: whether a process id belongs to the engine; None where NVML does not show its processes."""
        self._devices, self._is_ours, self._told = devices, is_ours, list(told)
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
