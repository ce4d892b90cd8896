"""The wiring between pytest and the rest: options, marks, fixtures, order. No logic lives here.

Engines, workloads and references are made when a test first needs them; when no fixture of this plugin is used, nothing
but this file, the settings, the hook specification and what an interruption needs is imported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specdec import fixtures, hookspecs
from pytest_specdec.errors import ConfigurationError, did_you_mean
from pytest_specdec.fixtures import ENGINE_FIXTURES, SCENARIOS, SETTINGS, find_storage, withhold
from pytest_specdec.interruption import Interruption, is_gate, without_empty_json
from pytest_specdec.settings import BY_NAME, OPTIONS, Settings

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine
    from pytest_specdec.engines.spec import EngineSpec
    from pytest_specdec.progress import Doing, PlannedGate
    from pytest_specdec.record import Record
    from pytest_specdec.report.decision import Decision
    from pytest_specdec.workloads.scenario import Choice

MARKS = (
    "specdec(**keys): engines of this test: target, draft, method, gamma, dtype, options, …; more marks add engines",
    "gpu: needs an NVIDIA GPU",
    "cpu: measures the processor, so no GPU may be visible",
    "multi_gpu(n): needs n visible GPUs",
    "engine(name): needs this engine's package",
    "thorough: takes long, so it runs only with --specdec-preset=thorough",
)
MEASURING_OPTIONS = [f"benchmark_{name}" for name in ("json", "save", "autosave", "only", "compare_fail")]
MEASURING_SETTINGS = ("compare", "fail", "fail_on")
FAKE_ALONE = ("fake",)
FAKE_CLOCK = "pytest_specdec.engines.fake.clock"
OWN_CLOCK = "the fake engine has a clock of its own: run it without other engines, or with --benchmark-disable"
FAKE_SCENARIO = Path(__file__).parent / "engines/fake/numbers.toml"
NEEDS = frozenset({"gpu", "cpu", "multi_gpu", "engine"})

BY_TARGET = "specdec_by_target"
RESUMED = "--specdec-resume:"
GROUP = re.compile("@[0-9a-f]{12}$")
EFFECTIVE = pytest.StashKey[list[str]]()
MISTAKES = pytest.StashKey[dict[str, list[str]]]()
INTERRUPTION = pytest.StashKey[Interruption]()
OVERRULED = pytest.StashKey[dict[str, bool]]()
OF_SPECULATION = ("draft", "method", "gamma")
OF_ENGINES = ("target", "dtype", "max_model_len", "python", "reference_python")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let other plugins add engines."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option and one ini key for each setting."""
    group = parser.getgroup("specdec", "speculative decoding, gated and measured")
    for option in OPTIONS:
        words = option.words
        group.addoption(option.flag, dest=option.ini, help=words.replace("%", "%%"), **option.on_command_line)
        parser.addini(option.ini, words)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the settings, register the marks, and refuse combinations that would measure nothing."""
    for line in MARKS:
        config.addinivalue_line("markers", line)
    try:
        _read_settings(config)
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[fixtures.WITHHELD], config.stash[SCENARIOS] = set(), {}
    config.pluginmanager.register(fixtures, fixtures.__name__)
    config.stash[INTERRUPTION] = interruption = Interruption(config)
    config.pluginmanager.register(interruption, "specdec_interruption")
    _keep_engines_together(config)


def _read_settings(config: pytest.Config) -> None:
    command_line = {option.name: config.getoption(option.ini) for option in OPTIONS}
    ini = {option.name: config.getini(option.ini) for option in OPTIONS}
    config.stash[SETTINGS] = settings = Settings.resolve(command_line, os.environ, ini)
    if settings.env:
        from pytest_specdec.exported_names import effective_configuration, settings_with_exported_names

        settings, exported = settings_with_exported_names(command_line, os.environ, ini)
        config.stash[SETTINGS] = settings
        config.stash[EFFECTIVE] = effective_configuration(settings, exported, os.environ)
        _warn(config, exported.warnings)
    if settings.baseline is not None:
        _find_the_baseline(config, settings.baseline)
    if settings.report is not None:
        from pytest_specdec.report import format_of

        with _at("--specdec-report"):
            format_of(Path(settings.report))


@contextmanager
def _at(option: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _find_the_baseline(config: pytest.Config, named: str) -> None:
    if config.getoption("benchmark_disable", False) and not config.getoption("benchmark_enable", False):
        raise ConfigurationError(
            "--specdec-compare and --specdec-fail compare nothing with --benchmark-disable: drop one"
        )
    from pytest_specdec.history.history import baselines

    with _at("--specdec-compare"):
        config.stash[fixtures.BASELINES] = baselines(named, find_storage(config))


def _is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist, which has a terminal reporter that nobody reads."""
    return hasattr(config, "workerinput")


def _warn(config: pytest.Config, warnings: Sequence[str]) -> None:
    for warning in warnings if not _is_worker(config) else ():
        config.issue_config_time_warning(pytest.PytestConfigWarning(warning), stacklevel=2)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The settings that differ from the defaults, and where each came from; with --specdec-env all of them."""
    differing = config.stash[SETTINGS].differing()
    return config.stash.get(EFFECTIVE, [f"specdec settings: {differing}"] if differing else [])


def _keep_engines_together(config: pytest.Config) -> None:
    """Under pytest-xdist each target goes to one worker; what asks for figures is refused, since it would give none."""
    if hasattr(config, "workerinput"):
        config.option.loadgroup = config.workerinput[BY_TARGET]
    if config.stash[SETTINGS].plan:
        config.option.dist = "no"
    if not config.getoption("numprocesses", None) or config.getoption("dist", "no") == "no":
        return
    if config.option.dist == "load":
        config.option.dist = "loadgroup"
    settings = config.stash[SETTINGS]
    asked = [f"--{name.replace('_', '-')}" for name in MEASURING_OPTIONS if config.getoption(name, None)]
    asked += [settings.origins[name] for name in MEASURING_SETTINGS if getattr(settings, name)]
    if asked:
        raise pytest.UsageError(
            f"{', '.join(asked)} with -n would measure nothing: pytest-benchmark is disabled under pytest-xdist. "
            "Measure without -n, or drop the option and use -n to gate correctness only"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist that tests go by group, which it reads from its command line alone."""
    node.workerinput[BY_TARGET] = node.config.option.dist == "loadgroup"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize engine fixtures over models, methods and γ, and `scenario` over scenario files."""
    try:
        if needs := _needs_of(metafunc.definition):
            from pytest_specdec.hardware import refuse_wrong_marks

            refuse_wrong_marks(needs)
        marks = _specdec_marks(metafunc.definition)
        _note_overruled(metafunc, marks)
        for fixture in [name for name in ENGINE_FIXTURES if _is_ours(name, metafunc.definition)]:
            from pytest_specdec.engines.spec import distinct_labels

            specs = _specs(fixture, marks, metafunc.config)
            metafunc.parametrize(fixture, specs, ids=distinct_labels(specs), indirect=True, scope="session")
        if _is_ours("scenario", metafunc.definition):
            choices = _scenarios(metafunc, marks, metafunc.config.stash[SETTINGS])
            ids = [choice.label for choice in choices]
            metafunc.parametrize("scenario", choices, ids=ids, indirect=True, scope="session")
    except ConfigurationError as error:
        mistakes = metafunc.config.stash.setdefault(MISTAKES, {})
        mistakes.setdefault(str(error), []).append(metafunc.definition.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Fail a file or class for all mistakes of its tests at once, each told once."""
    report = yield
    if mistakes := collector.config.stash.get(MISTAKES, {}):
        told = (
            (tests[0], f" and {len(tests) - 1} more" * (len(tests) > 1), words) for words, tests in mistakes.items()
        )
        report.longrepr = "\n".join(f"{test}{more}: {words}" for test, more, words in told)
        report.outcome, report.result = "failed", []
        mistakes.clear()
    return report


def _note_overruled(metafunc: pytest.Metafunc, marks: list[dict[str, Any]]) -> None:
    """Keep of each setting that this test asks for whether its marks, and those of all tests before, say it."""
    engines = [ENGINE_FIXTURES[name] for name in ENGINE_FIXTURES if _is_ours(name, metafunc.definition)]
    asked: tuple[str, ...] = OF_ENGINES if engines else ()
    asked += OF_SPECULATION if any(speculates for _, speculates in engines) else ()
    asked += ("scenario",) if _is_ours("scenario", metafunc.definition) else ()
    overruled = metafunc.config.stash.setdefault(OVERRULED, {})
    for name in asked:
        overruled[name] = overruled.get(name, True) and bool(marks) and all(name in mark for mark in marks)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Options of the command line that change nothing, since a mark of each test says otherwise."""
    origins = config.stash[SETTINGS].origins
    overruled = [BY_NAME[name] for name, always in config.stash.get(OVERRULED, {}).items() if always]
    idle = [option for option in overruled if origins.get(option.name) == option.flag]
    return [f"{each.flag} has no effect: the marks of all tests set {each.name} themselves" for each in idle]


def _is_ours(fixture: str, function: pytest.Item) -> bool:
    """Whether the function asks for this plugin's fixture, not for one of its own by the same name."""
    definitions = function._fixtureinfo.name2fixturedefs.get(fixture, ())  # type: ignore[attr-defined]
    return bool(definitions) and definitions[-1].func.__module__ == fixtures.__name__


def _specdec_marks(definition: pytest.Item) -> list[dict[str, Any]]:
    """The function's own `specdec` marks, one for each engine family, over what class and module set for all."""
    marks = list(definition.iter_markers_with_node("specdec"))
    for _, mark in marks:
        if mark.args:
            raise ConfigurationError(f"@pytest.mark.specdec takes keys only, not {mark.args[0]!r}: e.g. gamma=4")
    shared: dict[str, Any] = {}
    for node, mark in reversed(marks):
        shared |= mark.kwargs if node is not definition else {}
    own = [{**shared, **mark.kwargs} for node, mark in marks if node is definition][::-1]
    return own or ([shared] if shared else [])


def _specs(fixture: str, marks: list[dict[str, Any]], config: pytest.Config) -> list[EngineSpec]:
    from pytest_specdec.engines.choice import choose_engines, refuse_impossible

    settings, (backend, speculates) = config.stash[SETTINGS], ENGINE_FIXTURES[fixture]
    backends = (backend,) if backend is not None else settings.engine
    if not backends:
        raise ConfigurationError(f"the fixture {fixture} needs to know its engine: give --specdec-engine NAME")
    specs = [spec for name in backends for spec in choose_engines(name, speculates, marks, settings)]
    starts = config.hook.pytest_specdec_start_engine.get_hookimpls()
    # Which names another plugin answers to, it alone knows.
    others = any(each.function.__module__ != __name__ and not (each.wrapper or each.hookwrapper) for each in starts)
    refuse_impossible(specs, others, settings.cache)
    return specs


def _scenarios(metafunc: pytest.Metafunc, marks: list[dict[str, Any]], settings: Settings) -> list[Choice]:
    """The scenarios of one test; files are read now, so that their mistakes are told before anything is loaded."""
    from pytest_specdec.workloads.scenario import load_scenarios

    by_default = settings.scenario or ((str(FAKE_SCENARIO),) if settings.engine == FAKE_ALONE else ())
    given = [mark.get("scenario") or () for mark in marks]
    marked: list[Any] = [name for each in given for name in ([each] if isinstance(each, (str, os.PathLike)) else each)]
    named: Sequence[Any] = marked or by_default
    if not named:
        raise ConfigurationError("no scenario: give --specdec-scenario FILE, or @pytest.mark.specdec(scenario=…)")
    base = metafunc.config.rootpath if marked or not metafunc.config.getoption("specdec_scenario") else None
    beside = metafunc.definition.path.parent if marked else base
    paths = dict.fromkeys(_place(name, base, beside) if base and beside else name for name in named)
    read = metafunc.config.stash[SCENARIOS]
    found = load_scenarios(paths, settings.set, settings.places("set"), read)
    read |= found
    return list(found)


def _place(name: str, base: Path, beside: Path) -> Path:
    """From pytest's rootdir or beside the test; of what is at neither place, where something is called nearly so."""
    at_root, there = base / name, beside / name
    if at_root.exists() or there.exists():
        return at_root if at_root.exists() else there
    near = there.parent.is_dir() and did_you_mean(there.name, os.listdir(there.parent))
    return there if near else at_root


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Take a scheduler's group off the id of a test that ran on a worker, before JUnit XML and the terminal read it."""
    if hasattr(report, "node"):
        report.nodeid = GROUP.sub("", report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Group tests by target before pytest-xdist looks for groups; order them by engine after all other plugins."""
    if (arm := config.stash[SETTINGS].arm) is not None:
        speculate = {item: any(spec.speculates for spec in specs) for item in items if (specs := _engines_of(item))}
        other = [item for item, speculates in speculate.items() if speculates != (arm == "speculative")]
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if item not in other]
    # By identity: before pytest 9.2 an item hashes by its id, which changes below.
    written = {id(item): place for place, item in enumerate(items)}
    groups = {item: specs[0].target_only().key for item in items if (specs := _engines_of(item))}
    if config.pluginmanager.hasplugin("xdist"):
        for item, group in groups.items():
            item.add_marker(pytest.mark.xdist_group(group))
    yield
    if config.getoption("loadgroup", False):
        # pytest-xdist up to 3.8 puts the group, for its scheduler, where pytest 9.2 does not read it.
        for item, group in groups.items():
            if not item.nodeid.endswith(f"@{group}"):
                item._id = type(item._id).parse(f"{item.nodeid}@{group}")
    if groups:
        _order(items, written)
    _choose_clock(config, items)


def _choose_clock(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Where no clock is named: the fake engine's own, which moves when it decodes; beside others it is not timed."""
    session = getattr(config, "_benchmarksession", None)
    fakes = [item for item in items if any(spec.backend in FAKE_ALONE for spec in _engines_of(item))]
    if not fakes or session is None or session.disabled:
        return
    from pytest_benchmark.timers import default_timer
    from pytest_benchmark.utils import load_timer

    if load_timer(str(config.getoption("benchmark_timer"))).target is not default_timer:
        return
    if any(map(_runs_another, items)):
        for item in fakes:
            item.add_marker(pytest.mark.skip(reason=OWN_CLOCK))
    else:
        config.option.benchmark_timer, session.options["timer"] = FAKE_CLOCK, load_timer(FAKE_CLOCK)


def _order(items: list[pytest.Item], written: dict[int, int]) -> None:
    """Order tests by target and then by engine, target-only first, so that each engine is loaded once.

    Targets come in the order of the files, not in that which pytest makes of the parameters of a session.
    """
    from pytest_specdec.engines.choice import engine_order

    with_engines = [(item, specs) for item in items if (specs := _engines_of(item))]
    with_engines.sort(key=lambda each: written.get(id(each[0]), len(items)))
    order = engine_order([specs for _, specs in with_engines])
    ordered = iter([with_engines[index][0] for index in order])
    items[:] = [next(ordered) if _engines_of(item) else item for item in items]


def _engines_of(item: pytest.Item) -> list[EngineSpec]:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return []
    return [callspec.params[name] for name in ENGINE_FIXTURES if name in callspec.params and _is_ours(name, item)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Say what is to be gated before the first engine is loaded; with --specdec-plan stop there."""
    config, reporter = session.config, session.config.pluginmanager.get_plugin("terminalreporter")
    if config.option.collectonly or session.testsfailed or reporter is None or _is_worker(config):
        return None
    only = config.stash[SETTINGS].plan
    config.stash[fixtures.PLANNED] = gates = _planned(session)
    if only or (gates and config.option.verbose >= 0):
        from pytest_specdec.progress import describe_plan

        reporter.write_line("\n".join(describe_plan(gates)))
    return True if only else None


def _planned(session: pytest.Session) -> list[PlannedGate]:
    engines = {item: specs[-1] for item in session.items if is_gate(item) and (specs := _engines_of(item))}
    if not engines:
        return []
    from pytest_specdec.progress import PlannedGate, earlier_seconds

    try:
        took = earlier_seconds(find_storage(session.config))
    except ConfigurationError:
        took = {}
    gates = ((item.nodeid, spec, item.callspec.params.get("scenario")) for item, spec in engines.items())  # type: ignore[attr-defined]
    return [PlannedGate(test, spec, getattr(each, "label", "scenario"), took.get(test)) for test, spec, each in gates]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, by name and with a remedy, what this machine cannot run; fail instead where it was required."""
    if item.get_closest_marker("thorough") and item.config.stash[SETTINGS].preset != "thorough":
        pytest.skip("takes long: give --specdec-preset=thorough")
    engines = _engines_of(item)
    try:
        needs = _missing_here(item, engines)
    except ConfigurationError as error:
        pytest.fail(str(error), pytrace=False)
    for need, reason in needs:
        if need in item.config.stash[SETTINGS].require:
            pytest.fail(f"--specdec-require={need}: {reason}", pytrace=False)
        pytest.skip(reason)
    if engines and item.config.stash[SETTINGS].resume and (done := _green_before(item, engines)):
        pytest.skip(f"{RESUMED} {item.name} is green in {done}")


def _green_before(item: pytest.Item, engines: list[EngineSpec]) -> str | None:
    chosen = getattr(getattr(item, "callspec", None), "params", {}).get("scenario")
    read = item.config.stash[SCENARIOS].items()
    scenario = next((each for choice, each in read if choice == chosen), None)
    if len(engines) != 1 or scenario is None or not is_gate(item):
        return None
    from pytest_specdec.run.resume import green_before

    try:
        return green_before(item.nodeid, engines[0], scenario, item.config.stash[SETTINGS], find_storage(item.config))
    except ConfigurationError as error:
        pytest.fail(f"--specdec-resume: {error}", pytrace=False)


def _needs_of(item: pytest.Item) -> list[tuple[str, tuple[Any, ...]]]:
    return [(mark.name, (*mark.args, *mark.kwargs.values())) for mark in item.iter_markers() if mark.name in NEEDS]


def _missing_here(item: pytest.Item, engines: Sequence[EngineSpec]) -> list[tuple[str, str]]:
    """What this machine lacks for the test, and why it is needed. Raises ConfigurationError for a wrong mark."""
    marks = _needs_of(item)
    if not marks and not engines:
        return []
    from pytest_specdec.engines.spec import interpreters_here
    from pytest_specdec.hardware import missing

    return list(missing(marks, interpreters_here(engines)))


def _runs_another(item: pytest.Item) -> bool:
    others = [spec for spec in _engines_of(item) if spec.backend not in FAKE_ALONE]
    with suppress(ConfigurationError):
        return bool(others) and item.get_closest_marker("skip") is None and not _missing_here(item, others)
    return False


@pytest.hookimpl(trylast=True)
def pytest_specdec_start_engine(spec: EngineSpec, settings: Settings, doing: Doing) -> Engine:
    """The engines of this package: a worker process for vLLM and Transformers, or the fake one."""
    from pytest_specdec.engines.pool import start

    return start(spec, settings, doing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """What a test that fails or is broken off has timed goes, at once: one that is broken off has no report."""
    try:
        result = yield
        _refuse_ungated(item)
        return result
    except BaseException:
        if (benchmark := _benchmark_of(item)) is not None:
            withhold(item, benchmark)
        raise


def _refuse_ungated(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", ())
    taken = [name for name in ENGINE_FIXTURES if name in names and _is_ours(name, item)]
    if not taken or fixtures.GATED in item.stash:
        return
    asked = item._fixtureinfo.argnames if is_gate(item) else names  # type: ignore[attr-defined]
    if "specdec_session" not in asked:
        told = f"{item.name} takes {' and '.join(taken)} and gates nothing"
        pytest.fail(f"{told}: call specdec({taken[-1]}, scenario)", pytrace=False)


def _benchmark_of(item: pytest.Item) -> Any:
    return getattr(item, "funcargs", {}).get("benchmark") if is_gate(item) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A test that does not pass leaves no timing behind; one that cannot be timed needs no warning that it was not."""
    report = yield
    benchmark = _benchmark_of(item)
    if benchmark is None:
        return report
    if report.failed or call.excinfo is not None:
        withhold(item, benchmark)
    benchmark.skipped = benchmark.has_error or benchmark.disabled
    return report


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_benchmark_group_stats(config: pytest.Config, benchmarks: list[Any]) -> Any:
    """Rank only what is stored, and gates only where pytest-benchmark's table is asked for or has more to tell."""
    more = ("benchmark_compare", "benchmark_compare_fail", "benchmark_histogram", "benchmark_cprofile")
    asked = any(config.getoption(name, None) not in (None, False, "", []) for name in more)
    gates = asked or config.stash[SETTINGS].table == "both"
    stored = [bench for bench in benchmarks if bench["fullname"] not in config.stash[fixtures.WITHHELD]]
    benchmarks[:] = [bench for bench in stored if gates or "specdec" not in bench.get("extra_info", {})]
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """What the first γ of a sweep could not predict alone, its later ones tell."""
    from pytest_specdec.metrics.speedup import explain_in_hindsight
    from pytest_specdec.record import from_json, to_json

    kept = [each["extra_info"] for each in output_json["benchmarks"] if "specdec" in each["extra_info"]]
    records = explain_in_hindsight([from_json(each["specdec"]) for each in kept])
    for each, record in zip(kept, records, strict=True):
        each["specdec"] = to_json(record)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of all gates, and a word if gates are missing or nothing was measured; no worker says it."""
    if _is_worker(config):
        return
    records = _records(terminalreporter)
    if records:
        _tell_gates(terminalreporter, config, records)
    if resumed := _resumed(terminalreporter):
        from pytest_specdec.progress import count

        # Table and decisions are of the gates that ran: this command decides on the others too.
        told = f"{count(len(resumed), 'gate')} of saved runs, not in the table and the decisions of this session"
        command = f"pytest-specdec decide {find_storage(config)}"
        terminalreporter.write_line(f"resumed: {told}; on all that is saved: {command}")
    _tell_skips(terminalreporter, config)
    if ended := config.stash[INTERRUPTION].describe(len(records)):
        partial = config.stash[INTERRUPTION].partial(len(records))
        terminalreporter.write_line(f"partial: {ended}" if partial else ended, yellow=True)


def _tell_skips(terminalreporter: Any, config: pytest.Config) -> None:
    if not _our_skips(terminalreporter):
        return
    if terminalreporter.reportchars.strip("w") and "s" not in terminalreporter.reportchars:  # "w" stands there with -rN
        terminalreporter.reportchars += "s"
    if _ran_nothing(terminalreporter):
        remedy = "; in CI that fails without --specdec-allow-empty" if _fails_empty(config) else ""
        terminalreporter.write_line(f"nothing ran: every test was skipped{remedy}", red=bool(remedy), yellow=not remedy)


def _our_skips(terminalreporter: Any) -> list[Any]:
    skipped = terminalreporter.stats.get("skipped", [])
    ours = Path(__file__).parent
    return [each for each in skipped if isinstance(each.longrepr, tuple) and ours in Path(each.longrepr[0]).parents]


def _ran_nothing(terminalreporter: Any) -> bool:
    ran = ("passed", "failed", "error", "xfailed", "xpassed")
    some = _resumed(terminalreporter) or any(terminalreporter.stats.get(kind) for kind in ran)
    return bool(_our_skips(terminalreporter)) and not some


def _resumed(terminalreporter: Any) -> list[Any]:
    return [each for each in _our_skips(terminalreporter) if RESUMED in each.longrepr[2]]


def _fails_empty(config: pytest.Config) -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false") and not config.stash[SETTINGS].allow_empty


def _tell_gates(terminalreporter: Any, config: pytest.Config, records: list[Record]) -> None:
    from pytest_specdec.progress import count
    from pytest_specdec.report.decision import USE, headline, in_words, write_lines
    from pytest_specdec.report.findings import change_notes, decisions_on, present_run, worst
    from pytest_specdec.report.notes import footnotes
    from pytest_specdec.report.table import print_table, screen_width

    write, width = terminalreporter.write_line, screen_width()
    terminalreporter.section("speculative decoding: is it exact, is it faster")
    quiet, verbose = config.option.verbose < 0, config.option.verbose > 0
    shown = print_table(records, width, write, terminalreporter._tw.hasmarkup)
    write(headline(records))
    decisions = decisions_on([present_run(records, config.rootpath)])
    for line, outcome in write_lines(decisions, width):
        write(line, green=outcome == USE, yellow=outcome not in ("", USE))
    notes = [] if quiet else footnotes(records, shown, in_words(decisions))
    for note in [*notes, *change_notes(records, verbose), *worst(records)]:
        write(note)
    partial = config.stash[INTERRUPTION].partial(len(records))
    _tell_github(config.rootpath, records, decisions, partial, write)
    judged = [record for record in records if record.judged]
    if judged and not any(record.throughput.seconds.value for record in judged):
        write(f"nothing was measured: {count(len(judged), 'gate')} judged correctness only", yellow=True)


def _tell_github(
    rootdir: Path, records: list[Record], decisions: list[Decision], partial: str, write: Callable[[str], None]
) -> None:
    from pytest_specdec.report.findings import error_lines, markdown

    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(records, decisions, partial))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in error_lines(records, lambda file: _from_checkout(rootdir, file)):
            write(line)


def _from_checkout(rootdir: Path, file: str) -> str:
    """A file as GitHub names it, from the root of the repository; one outside of that as pytest does."""
    checkout = Path(os.environ.get("GITHUB_WORKSPACE") or rootdir).resolve()
    path = (rootdir / file).resolve()
    return path.relative_to(checkout).as_posix() if checkout in path.parents else file


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave no empty JSON; write the report, which has the red gates as well; fail where nothing ran in CI."""
    config, reporter = session.config, session.config.pluginmanager.get_plugin("terminalreporter")
    file, json_file = config.stash[SETTINGS].report, config.getoption("benchmark_json", None)
    told = [without_empty_json(json_file)] if json_file is not None else []
    if reporter is None or _is_worker(config):
        return
    told += [_report(config, _records(reporter), Path(file))] if file is not None else []
    for line in filter(None, told):
        reporter.write_line(f"\n{line}")
    if _ran_nothing(reporter) and _fails_empty(config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _report(config: pytest.Config, records: list[Record], file: Path) -> str:
    from pytest_specdec.report import format_of, write_report
    from pytest_specdec.report.findings import present_run

    if not records:
        return f"no gate ran, so there is no report in {file}"
    storage = getattr(getattr(config, "_benchmarksession", None), "storage", None)
    try:
        folder, partial = Path(getattr(storage, "path", config.rootpath)), config.stash[INTERRUPTION].partial
        write_report([present_run(records, folder, partial(len(records)))], file, format_of(file))
    except ConfigurationError as error:
        return str(error)
    return f"report: {file}"


def _records(terminalreporter: Any) -> list[Record]:
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(kind, [])]
    return [
        _place_record(report, json.loads(value))
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == fixtures.PROPERTY
    ]


def _place_record(report: Any, told: dict[str, Any]) -> Record:
    """A record with its test's place; red where the test failed for another reason than its baseline run."""
    from pytest_specdec.record import RED, REGRESSED, Place, from_json

    record, (file, line, _) = from_json(told), report.location
    gate = RED if report.failed and record.gate != REGRESSED else record.gate
    return replace(record, gate=gate, place=Place(test=report.nodeid, file=file, line=(line or 0) + 1))
