"""What the gates on GPUs share: the memory that engines leave behind on the first visible one, and the known truth."""

from __future__ import annotations

import time

import pytest

from pytest_specdec.hardware import gpus

ALLOWED_SHARE = 0.01
RETURNED_WITHIN_SECONDS = 120.0


class MemoryTable:
    """Rows of (engine, bytes in use before it loads, and when it is ready)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []
        self.after: int | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_specdec_start_engine(self, spec):
        """Note the memory around each load."""
        before = in_use()[0]
        engine = yield
        self.rows.append((f"{spec.label} ({spec.backend})", before, in_use()[0]))
        return engine

    @property
    def returned(self) -> bool:
        """Whether the card is as empty after the last engine as before the first, to within 1 % of it."""
        return self.after is None or abs(self.after - self.rows[0][1]) < ALLOWED_SHARE * in_use()[1]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """Every engine has ended, and the driver is given time to take its memory back: a leak fails the session."""
        self.after = in_use()[0] if self.rows else None
        until = time.monotonic() + RETURNED_WITHIN_SECONDS
        while not self.returned and time.monotonic() < until:
            time.sleep(0.5)
            self.after = in_use()[0]
        if not self.returned:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        """The table."""
        if self.after is None:
            return
        terminalreporter.section("memory in use on the first GPU, GiB")
        for name, before, ready in self.rows:
            terminalreporter.write_line(f"{name}: {before / 2**30:.2f} before, {ready / 2**30:.2f} when ready")
        words = "returned" if self.returned else "NOT RETURNED: an engine leaks"
        terminalreporter.write_line(f"when all had ended: {self.after / 2**30:.2f}, {words}", red=not self.returned)


def in_use() -> tuple[int, int]:
    """Bytes in use on the first visible GPU, whoever holds them, and its size."""
    import pynvml

    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(gpus().visible[0].uuid))
    return memory.used, memory.total


def pytest_configure(config):
    """Watch the memory of a session that has a GPU; a worker of pytest-xdist need not have the first one."""
    if gpus().visible and not hasattr(config, "workerinput"):
        config.pluginmanager.register(MemoryTable())


@pytest.fixture
def is_identical_and_true(specdec):
    """The gate, whose prompts the prefix cache knows; its verdict must be identical, and held against the truth."""

    def checked(spec, scenario):
        record = specdec(spec, scenario.model_copy(update={"prefix_cache": "keep"}))
        assert record.verdict.outcome == "identical"
        assert record.verdict.known_truth.wrong.value == 0
        assert record.throughput.prefix_cache_hits.value > 0
        return record

    return checked
