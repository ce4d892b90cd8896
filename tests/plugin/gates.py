"""Sources of the inner project: its ini file, and tests of which each gates one engine."""

from __future__ import annotations

from typing import Any

INI = """
[pytest]
specdec_engine = fake
addopts = --benchmark-timer=pytest_specdec.engines.fake.clock
"""


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
