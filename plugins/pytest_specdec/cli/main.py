"""`pytest-specdec list | show | compare | report | doctor`: what was measured before, and what can be measured here.

Nothing here measures: that is pytest's. Runs are named as pytest-benchmark numbers them ("0007", or "7"), or by file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_specdec.cli import doctor, history
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import storage_folder
from pytest_specdec.thresholds import Threshold

STORAGE = ".benchmarks"
FORMATS = ("html", "markdown", "csv", "json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: `compare` found something worse; 2: bad input, in one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytest-specdec", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="{list,show,compare,report,doctor}")
    stored = argparse.ArgumentParser(add_help=False)
    stored.add_argument("--storage", type=_folder, default=Path(STORAGE), help=f"pytest-benchmark's; default {STORAGE}")

    listing = commands.add_parser("list", parents=[stored], help="saved runs, the newest last")
    listing.add_argument("-n", "--number", type=int, default=20, help="how many; default 20, 0 for all")
    listing.set_defaults(run=history.list_runs)

    show = commands.add_parser("show", parents=[stored], help="the gates of one run")
    show.add_argument("run_name", metavar="RUN", nargs="?", default="latest")
    show.set_defaults(run=history.show)

    compare = commands.add_parser("compare", parents=[stored], help="what changed from one run to another")
    compare.add_argument("then", metavar="THEN")
    compare.add_argument("now", metavar="NOW", nargs="?", default="latest")
    compare.add_argument("--fail", type=_threshold, action="append", default=[], metavar="METRIC:MOST")
    compare.set_defaults(run=history.compare)

    report = commands.add_parser("report", parents=[stored], help="a page with tables and figures")
    report.add_argument("runs", metavar="RUN", nargs="*", help="default: every run in the storage")
    report.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    report.add_argument("--format", choices=FORMATS, help="default: by the file's suffix")
    report.set_defaults(run=history.report)

    checks = commands.add_parser("doctor", help="what this machine can run, and what would be skipped")
    checks.add_argument("--json", action="store_true", help="as one JSON object, for a report of a bug")
    checks.set_defaults(run=doctor.doctor)
    return parser


def _folder(text: str) -> Path:
    try:
        return storage_folder(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _threshold(text: str) -> Threshold:
    try:
        return Threshold.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
