"""What a test asks for by name: engines, scenarios, and the gate.

An engine fixture gives the specification of an engine, not a loaded one; the gate loads it inside the test, so what
goes wrong is that test's error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from pytest_specdec.errors import SpecdecError, Unsupported
from pytest_specdec.settings import Settings

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine
    from pytest_specdec.engines.spec import EngineSpec
    from pytest_specdec.gpu_locks import Placement
    from pytest_specdec.history.history import Baselines
    from pytest_specdec.progress import PlannedGate, Progress
    from pytest_specdec.record import Record
    from pytest_specdec.run.session import Session
    from pytest_specdec.workloads.scenario import Choice, Scenario

SPECDEC = "  specdec: "
CLEAR = "\r\x1b[2K"
ENGINE_FIXTURES = {
    "vllm_spec": ("vllm", True),
    "vllm_ar": ("vllm", False),
    "transformers_spec": ("transformers", True),
    "transformers_ar": ("transformers", False),
    "openai_server": ("server", True),
    "spec_engine": (None, True),
    "ar_engine": (None, False),
}
SETTINGS = pytest.StashKey[Settings]()
SCENARIOS: pytest.StashKey[dict[Choice, Scenario]] = pytest.StashKey()
GATED = pytest.StashKey[str]()
WITHHELD = pytest.StashKey[set[str]]()
BASELINES: pytest.StashKey[Baselines] = pytest.StashKey()
PLANNED: pytest.StashKey[list[PlannedGate]] = pytest.StashKey()
PROPERTY = "specdec"


@pytest.fixture(scope="session")
def specdec_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Engines, workloads and references of this session; every engine's process has ended when the session has."""
    from pytest_benchmark.utils import load_timer

    from pytest_specdec.engines.fork_server import close_all as close_fork_servers
    from pytest_specdec.engines.pool import Pool
    from pytest_specdec.run.session import Session

    settings = request.config.stash[SETTINGS]
    with _progress(request.config) as progress:
        place = _placement(request)
        pool = Pool(_starter(request.config, progress), place or (lambda spec: spec))
        try:
            timer = load_timer(str(request.config.getoption("benchmark_timer"))).target
            session = Session(settings, pool, timer, progress)
            if (found := request.config.stash.get(BASELINES, None)) is not None:
                from pytest_specdec.history.history import RegressionGate

                session.regression = RegressionGate(found, settings.fail, settings.fail_on)
            yield session
        finally:
            with progress.during("the engines are ended"):
                pool.close()
                close_fork_servers()
            if place is not None:
                place.close()


def _placement(request: pytest.FixtureRequest) -> Placement | None:
    """On a worker of pytest-xdist with GPUs: some for its own engines; else engines see what this process sees."""
    from pytest_specdec.hardware import gpus

    worker = getattr(request.config, "workerinput", None)
    if worker is None or not gpus().visible:
        return None
    from pytest_specdec.gpu_locks import Placement, claim, count_gpus

    wanted = count_gpus(*_demands(request.session.items))
    timeout = request.config.stash[SETTINGS].load_timeout
    return Placement(lambda: claim(gpus().visible, wanted, str(worker["testrunuid"]), timeout))


def _demands(items: list[pytest.Item]) -> tuple[list[EngineSpec], list[int]]:
    from pytest_specdec.hardware import wanted_gpus

    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    specs = [each[name] for each in params for name in ENGINE_FIXTURES if hasattr(each.get(name), "options")]
    marks = [mark for item in items for mark in item.iter_markers("multi_gpu")]
    return specs, [wanted_gpus((*mark.args, *mark.kwargs.values())) for mark in marks]


def _starter(config: pytest.Config, progress: Progress) -> Callable[[EngineSpec], Engine]:
    settings, hook = config.stash[SETTINGS], config.hook.pytest_specdec_start_engine

    def start(spec: EngineSpec) -> Engine:
        began = time.monotonic()
        with progress.doing(f"loading {spec.label} ({spec.backend}, {spec.dtype})"):
            engine: Engine = hook(spec=spec, settings=settings, doing=progress.doing)
        progress.announce(f"{spec.label} is ready after {time.monotonic() - began:.1f} s")
        return engine

    return start


def find_storage(config: pytest.Config) -> Path:
    """Where pytest-benchmark keeps its results. Raises ConfigurationError."""
    from pytest_specdec.history.saved import storage_folder

    return storage_folder(str(config.getoption("benchmark_storage")))


@contextmanager
def _progress(config: pytest.Config) -> Iterator[Progress]:
    """Progress on the terminal while engines load and decode, past pytest's capturing; silent with -q and -n."""
    from pytest_specdec.progress import Progress

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None or capture is None or config.option.verbose < 0 or hasattr(config, "workerinput"):
        yield Progress()
        return
    with capture.global_and_fixture_disabled():
        screen = _screen()
    with screen as file:
        lives = file.isatty() and os.environ.get("TERM") != "dumb"
        draw = partial(_draw, reporter, file) if lives else None
        progress = Progress(partial(_say, reporter, file), draw=draw)
        planned: list[PlannedGate] = config.stash.get(PLANNED, [])
        progress.gates = {gate.test: gate.seconds for gate in planned}
        yield progress


def _screen() -> AbstractContextManager[TextIO]:
    """Standard output as it is now, under a number of its own: capturing, which no thread may lift, passes it by."""
    try:
        number = os.dup(sys.stdout.fileno())
    except (AttributeError, OSError):
        return nullcontext(sys.stdout)
    return os.fdopen(number, "w", encoding=sys.stdout.encoding, errors="backslashreplace")


def _draw(reporter: Any, screen: TextIO, text: str) -> None:
    room = shutil.get_terminal_size().columns - len(SPECDEC) - 1
    _write(reporter, screen, CLEAR + (f"{SPECDEC}{text[:room]}" if text else ""))


def _say(reporter: Any, screen: TextIO, text: str) -> None:
    line = reporter.config.get_terminal_writer().markup(f"{SPECDEC}{text}", cyan=True)
    _write(reporter, screen, f"{CLEAR * screen.isatty()}{line}\n")


def _write(reporter: Any, screen: TextIO, text: str) -> None:
    """On a line of its own, also where pytest has begun one with the test's name."""
    begun, reporter.currentfspath = bool(reporter.currentfspath), None
    screen.write("\n" * begun + text)
    screen.flush()


def _engine(told: str) -> Any:
    """A fixture of this docstring: the engine that a test's marks and the settings have chosen for it."""

    def engine(request: pytest.FixtureRequest) -> EngineSpec:
        return request.param  # type: ignore[no-any-return]

    engine.__doc__ = told
    return pytest.fixture(scope="session")(engine)


vllm_spec = _engine("vLLM with speculation.")
vllm_ar = _engine("vLLM, target only (autoregressive).")
transformers_spec = _engine("Transformers with speculation: assisted generation.")
transformers_ar = _engine("Transformers, target only (autoregressive).")
openai_server = _engine("An engine behind an HTTP endpoint, with speculation; found or started by the first gate.")
spec_engine = _engine("An engine of the backend that `--specdec-engine` names, with speculation.")
ar_engine = _engine("An engine of the backend that `--specdec-engine` names, target only.")


@pytest.fixture(scope="session")
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """One scenario file of those that `--specdec-scenario` or the mark names; a test for each."""
    return request.config.stash[SCENARIOS][request.param]


@pytest.fixture
def specdec(
    request: pytest.FixtureRequest, specdec_session: Session, benchmark: Any
) -> Callable[[EngineSpec, Scenario], Record]:
    """The gate: `specdec(engine, scenario)` judges, measures, records; returns the record, or fails the test."""
    from pytest_specdec.progress import SECONDS
    from pytest_specdec.record import to_json
    from pytest_specdec.report.findings import flat
    from pytest_specdec.run.gate import Gate

    began = time.monotonic()

    def keep(record: Record) -> None:
        told = to_json(record)
        benchmark.extra_info |= {"specdec": told, SECONDS: round(time.monotonic() - began, 1)}
        request.node.user_properties.append((PROPERTY, json.dumps(told, sort_keys=True)))
        request.node.user_properties.extend(flat(record))

    if benchmark.params is not None:  # engines and scenarios by name, as the test's id has them
        ours = {name: each for name, each in benchmark.params.items() if name in (*ENGINE_FIXTURES, "scenario")}
        labels = {name: each.label for name, each in ours.items() if hasattr(each, "label")}
        benchmark.params = {**benchmark.params, **labels}
    gate = Gate(specdec_session, benchmark, keep)
    gated = request.node.stash

    def check(engine: EngineSpec, scenario: Scenario) -> Record:
        _refuse_other_arguments(engine, scenario)
        if GATED in gated:
            pytest.fail(f"specdec() measures once a test, and has measured {gated[GATED]}: parametrize", pytrace=False)
        gated[GATED] = engine.label
        specdec_session.progress.begin_gate(request.node.nodeid)
        try:
            return gate(engine, scenario)
        except SpecdecError as error:
            problem = error
        withhold(request.node, benchmark)
        if isinstance(problem, Unsupported) and "supported" not in specdec_session.settings.require:
            pytest.skip(str(problem))
        pytest.fail(str(problem), pytrace=False)

    return check


def _refuse_other_arguments(engine: Any, scenario: Any) -> None:
    from pytest_specdec.engines.spec import EngineSpec
    from pytest_specdec.workloads.scenario import Scenario

    if not (isinstance(engine, EngineSpec) and isinstance(scenario, Scenario)):
        hint = " in this order" if isinstance(scenario, EngineSpec) and isinstance(engine, Scenario) else ""
        found = f"{type(engine).__name__} and {type(scenario).__name__}"
        pytest.fail(f"specdec() takes an engine and a scenario{hint}, not {found}", pytrace=False)


def withhold(item: pytest.Item, benchmark: Any) -> None:
    """Keep a test's timing out of what pytest-benchmark stores, and out of its ranking."""
    benchmark.has_error = True
    item.config.stash[WITHHELD].add(item.nodeid)
