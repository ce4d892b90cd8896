"""The gate of a test against its baseline: which figures changed, by how much, and whether that fails the test.

Equality comes first: only a record whose own gate is green is held against anything. What fails: a figure that is
worse, and a baseline that was refused; by choice (`--specdec-fail-on`) also one that is missing, or rounds that do not
decide. All else is a note. Nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_specdec.results.baselines import Baselines, Found
from pytest_specdec.results.compare import Change, Outcome, compared
from pytest_specdec.results.history import circumstances, differences
from pytest_specdec.thresholds import SHOWN, Threshold

Record = Mapping[str, Any]
MISSING = "missing"
INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class RegressionGate:
    """`thresholds`: none means that changes are only shown. `fail_on`: "missing", "inconclusive", or both."""

    baselines: Baselines
    thresholds: Sequence[Threshold] = ()
    fail_on: Collection[str] = ()

    def part(self, now: Record, test: str) -> dict[str, Any]:
        """The record's `baseline`: the run, what has changed around it, each figure's change, and complaints."""
        found = self.baselines.find(now, test)
        changes = self._changes(now, found)
        return {
            "run": found.run.id if found.record is not None and found.run else None,
            "path": str(found.run.path) if found.record is not None and found.run else None,
            "test": found.record.get("test") if found.record is not None else None,
            "reason": found.problem or None,
            "passed_over": list(found.passed_over),
            "circumstances": differences(circumstances(now), circumstances(found.record)) if found.record else [],
            "changes": [change.wire() for change in changes],
            "complaints": [*self._about(found), *(_words(change, found) for change in changes if self._fails(change))],
        }

    def _changes(self, now: Record, found: Found) -> list[Change]:
        if found.record is None:
            return []
        each = [compared(now, found.record, threshold) for threshold in self.thresholds or SHOWN]
        return [change for change in each if change is not None]

    def _about(self, found: Found) -> list[str]:
        """The complaint about a baseline that is not there."""
        if found.record is not None or not ((found.refused and self.thresholds) or MISSING in self.fail_on):
            return []
        return [f"no baseline: {found.problem}"]

    def _fails(self, change: Change) -> bool:
        return change.outcome is Outcome.WORSE or change.outcome.value in self.fail_on


def _words(change: Change, found: Found) -> str:
    run = found.run.id if found.run else ""
    return f"{change.in_words}, against run {run}"
