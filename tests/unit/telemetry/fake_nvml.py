"""An NVML of made-up cards, driven by a clock that moves when someone sleeps. It is passed in, never patched in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class FakeClock:
    """Seconds that pass by `sleep`; its tickers fire when their moment comes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._tickers: list[FakeTicker] = []

    def __call__(self) -> float:
        return self.now

    @property
    def ticking(self) -> bool:
        """Whether a ticker runs."""
        return any(ticker.due != float("inf") for ticker in self._tickers)

    def sleep(self, seconds: float) -> None:
        """Let time pass, firing tickers on the way."""
        end = self.now + seconds
        while due := [ticker for ticker in self._tickers if ticker.due <= end]:
            first = min(due, key=lambda ticker: ticker.due)
            self.now = max(self.now, first.due)
            first.fire()
        self.now = end

    def ticker(self, interval: float, action: Callable[[], None]) -> FakeTicker:
        """Stands for a thread."""
        made = FakeTicker(self, interval, action)
        self._tickers.append(made)
        return made


class FakeTicker:
    """Fires in the clock's time."""

    def __init__(self, clock: FakeClock, interval: float, action: Callable[[], None]) -> None:
        self._clock, self._interval, self._action = clock, interval, action
        self.due = float("inf")

    def start(self) -> None:
        self.due = self._clock() + self._interval

    def stop(self) -> None:
        self.due = float("inf")

    def fire(self) -> None:
        self.due += self._interval
        self._action()


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Card:
    """One made-up GPU. Its counter moves each `step` seconds, `phase` seconds after the full step."""

    uuid: str
    name: str = "H100"
    step: float = 0.1
    phase: float = 0.0
    has_counter: bool = True
    has_instant: bool = True
    mig: bool | None = False
    celsius: int | None = 40
    throttle: int = 0
    used: int = 0
    stuck: bool = False
    lost: bool = False
    forgotten_mj: int = 0
    processes: dict[int, int | None] | None = field(default_factory=dict)
    power: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 100.0)])

    def draw(self, watts: float, since: float) -> None:
        """Draw so much from this moment on."""
        self.power.append((since, watts))

    def watts(self) -> float:
        return self.power[-1][1]

    def joules(self, until: float) -> float:
        """What was really drawn from 0 s."""
        ends = [start for start, _ in self.power[1:]] + [float("inf")]
        pieces = zip(self.power, ends, strict=True)
        return sum(max(0.0, min(until, end) - start) * watts for (start, watts), end in pieces)

    def counter_mj(self, now: float) -> int:
        moved = 0.0 if self.stuck else ((now - self.phase + 1e-9) // self.step) * self.step + self.phase
        return int(1000 * self.joules(moved)) - self.forgotten_mj


class FakeNvml:
    """The part of pynvml that is used, for these cards in NVML's order. A handle is the card."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    nvmlClocksThrottleReasonSwPowerCap = 0x4
    nvmlClocksThrottleReasonHwSlowdown = 0x8
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80

    def __init__(self, clock: FakeClock, *cards: Card) -> None:
        self._clock, self._cards = clock, cards

    def nvmlDeviceGetCount(self) -> int:
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        return next(card for card in self._cards if card.uuid == uuid)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetTotalEnergyConsumption(self, card: Card) -> int:
        self._supported(card.has_counter and not card.lost)
        return card.counter_mj(self._clock())

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        raise AssertionError("the 1 s average must not be asked for")

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[Any]:
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        self._supported(not card.lost)
        value = SimpleNamespace(uiVal=round(1000 * card.watts()))
        return [SimpleNamespace(nvmlReturn=0 if card.has_instant else 3, value=value)]

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        self._supported(card.mig is not None)
        return [int(bool(card.mig)), int(bool(card.mig))]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return card.throttle

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        self._supported(card.celsius is not None)
        return card.celsius or 0

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        self._supported(card.processes is not None)
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in (card.processes or {}).items()]

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        self._supported(not card.lost)
        return SimpleNamespace(used=card.used)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        return SimpleNamespace(gpu=97, memory=50)

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:
        return {1: 1980, 2: 2619}[kind]

    def _supported(self, supported: bool) -> None:
        if not supported:
            raise NVMLError("Not Supported")
