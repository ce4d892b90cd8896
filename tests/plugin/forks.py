"""Runs pytest in forks of one process that has imported what every run needs; a new one would take a second for it.

`python forks.py MODULE...` imports the modules. Then each line that it reads is a run: its folder, its environment, its
options, and the files that take what it prints. When the run has ended, its exit status is the line that is answered.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import pytest_benchmark.plugin
from _pytest.config import PytestPluginManager
from _pytest.fixtures import FixtureManager
from _pytest.nodes import Node
from _pytest.terminal import TerminalReporter

TAG, ARCHITECTURE = cache(pytest_benchmark.plugin.get_tag), cache(platform.architecture)
LIST_DISTRIBUTIONS = importlib.metadata.distributions
PARSE = FixtureManager.parsefactories
OPTIONS_OF_HOOK = PytestPluginManager.parse_hookimpl_opts
HOOKS: dict[tuple[ModuleType, str], Any] = {}
STAY = "_pytest.", "pytest_benchmark.", "pytest_specdec.", "xdist."  # modules that are the same in each run
MARKS_OF_FIXTURES = "_fixture_function_marker", "_pytestfixturefunction"  # the second before pytest 8.4


def prepare(modules: Iterable[str]) -> None:
    """Import all that is imported anew by each run.

    Each collects garbage some ten times: what is here by now is not looked at again.
    """
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


@contextmanager
def answers_known() -> Iterator[None]:
    """What each run asks anew is known.

    pytest-benchmark asks git, hg and file in other processes, pytest every installed package for each `-p`, and each
    name in every plugin whether it is a fixture or a hook, as few are: up to a third of a run. Of a session that is
    broken off pytest parses the source of each frame, its own ones too, and prints one line.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "distributions", _list_plugins)
        patch.setattr(pytest_benchmark.plugin, "get_tag", TAG)
        patch.setattr(platform, "architecture", ARCHITECTURE)
        patch.setattr(FixtureManager, "parsefactories", _parse_where_any_are)
        patch.setattr(PytestPluginManager, "parse_hookimpl_opts", _options_of_hook)
        patch.setattr(TerminalReporter, "pytest_keyboard_interrupt", _note_what_broke_off)
        yield


class Installed:
    """A package whose files are read once."""

    def __init__(self, found: importlib.metadata.Distribution) -> None:
        self._found = found
        self.entry_points, self.metadata = found.entry_points, found.metadata
        self.version = self.metadata["version"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)


@cache
def _list_plugins() -> list[Installed]:
    return [Installed(each) for each in LIST_DISTRIBUTIONS() if each.entry_points.select(group="pytest11")]


def _parse_where_any_are(self: Any, *told: Any, **named: Any) -> None:
    holder = named.get("holder", *told[:1])
    if isinstance(holder, ModuleType) and holder.__name__.startswith(STAY):
        holder = _with_fixtures_alone(holder)
        told, named = (holder, *told[1:])[: len(told)], {**named, **({"holder": holder} if "holder" in named else {})}
    if isinstance(holder, Node) or not type(holder).__module__.startswith("_pytest.") or _fixtures_of(type(holder)):
        PARSE(self, *told, **named)


@cache
def _with_fixtures_alone(module: ModuleType) -> ModuleType:
    """The module without the hundreds of names in it that are no fixtures."""
    alone = ModuleType(module.__name__)
    vars(alone).update(_fixtures_of(module))
    return alone


@cache
def _fixtures_of(holder: ModuleType | type) -> dict[str, Any]:
    marked = {name for name, value in vars(holder).items() for mark in MARKS_OF_FIXTURES if getattr(value, mark, None)}
    return {name: vars(holder)[name] for name in marked}


def _options_of_hook(self: Any, plugin: object, name: str) -> Any:
    if not name.startswith("pytest_"):
        return None
    if not isinstance(plugin, ModuleType) or not plugin.__name__.startswith(STAY):
        return OPTIONS_OF_HOOK(self, plugin, name)
    if (plugin, name) not in HOOKS:
        HOOKS[plugin, name] = OPTIONS_OF_HOOK(self, plugin, name)
    return HOOKS[plugin, name]


def _note_what_broke_off(self: Any, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    self._keyboardinterrupt_memo = excinfo.getrepr(style="native")


def main() -> int:
    """Run one after another until nobody asks for more."""
    prepare(sys.argv[1:])
    with answers_known():
        _list_plugins()
        for line in sys.stdin:
            if os.fork() == 0:
                return run(**json.loads(line))
            print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    return 0


def run(folder: str, environment: Mapping[str, str], options: Sequence[str], files: Sequence[str]) -> int:
    """What `python -m pytest` would do there."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    opened = [os.open(os.devnull, os.O_RDONLY), *(os.open(path, os.O_WRONLY) for path in files)]
    for descriptor, file in enumerate(opened):
        os.dup2(file, descriptor)
        os.close(file)
    sys.path[0], sys.argv = folder, ["pytest", *options]
    return pytest.main()


if __name__ == "__main__":
    sys.exit(main())
