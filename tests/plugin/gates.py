"""Sources of the inner project: its ini file, tests of which each gates one engine, and an engine of its conftest."""

from __future__ import annotations

import textwrap
from typing import Any

INI = """
[pytest]
specdec_engine = fake
addopts = --benchmark-timer=pytest_specdec.engines.fake.clock
"""
OWN_ENGINE = """
from dataclasses import replace

from pytest_specdec.engines.fake import TIME, FakeEngine
from pytest_specdec.errors import EngineDied, EngineError, Unsupported

class Own(FakeEngine):
{methods}

@pytest.hookimpl(specname="pytest_specdec_start_engine")
def pytest_start_own(spec):
    return Own(spec) if {only} else None
"""


def own_engine(methods: str, only: str = "True") -> str:
    """A conftest that starts the fake engine with other methods, for those that are asked for `only`."""
    return OWN_ENGINE.format(methods=textwrap.indent(textwrap.dedent(methods), "    "), only=only)


def gate(test: str = "test_it", engine: str = "spec_engine", **mark: Any) -> str:
    """A test that gates the engine of this fixture, under a mark with these keys."""
    keys = ", ".join(f"{key}={value!r}" for key, value in mark.items())
    marked = f"@pytest.mark.specdec({keys})\n" if mark else ""
    return f"{marked}def {test}(specdec, {engine}, scenario):\n    specdec({engine}, scenario)\n\n"


def both_arms(**mark: Any) -> str:
    """The target alone, and its speculation under this mark, by default one whose drafts are all accepted."""
    keys = {"gamma": 3, "speculative_options": {"alpha": 1.0}, **mark}
    return gate("test_target_only", "ar_engine") + gate("test_speculative", **keys)


SPECULATIVE, TARGET_ONLY = gate(), gate(engine="ar_engine")
WRONG_TOKEN = {"gamma": 3, "speculative_options": {"fault": "wrong token"}}
