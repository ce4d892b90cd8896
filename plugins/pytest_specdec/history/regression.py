"""The gate of a test against its baseline run: which figures changed, by how much, and whether that fails the test.

Equality comes first: only a record whose own gate is green is compared with anything. What fails: a figure that is
worse, one that more rounds would decide, and a baseline run that was refused; by choice (`--specdec-fail-on`) also one
that is missing, or that only more sessions would decide. All else is a note. Nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pytest_specdec.history.compare import Outcome, compare_figure, in_words
from pytest_specdec.history.history import Baselines, Found, circumstances, differences
from pytest_specdec.record import Record
from pytest_specdec.record.parts import BaselinePart, ChangePart
from pytest_specdec.thresholds import SHOWN, Threshold

MISSING = "missing"
INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class RegressionGate:
    """`thresholds`: none means that changes are only shown. `fail_on`: "missing", "inconclusive", or both."""

    baselines: Baselines
    thresholds: Sequence[Threshold] = ()
    fail_on: Collection[str] = ()

    def part(self, now: Record, test: str) -> BaselinePart:
        """The record's baseline: the run, what has changed around it, each figure's change, and failures."""
        found = self.baselines.find(now, test)
        changes = self._changes(now, found)
        failures = (*self._about(found), *(_words(change, found) for change in changes if self._fails(change)))
        if found.record is None or found.run is None:
            return BaselinePart(reason=found.problem or None, passed_over=found.passed_over, failures=failures)
        return BaselinePart(
            run=found.run.id,
            path=str(found.run.path),
            test=found.record.place.test or None,
            passed_over=found.passed_over,
            circumstances=tuple(differences(circumstances(now), circumstances(found.record))),
            changes=changes,
            failures=failures,
        )

    def wants_rounds(self, now: Record, test: str) -> bool:
        """Whether more rounds would decide a figure that these do not."""
        return any(map(_wants_rounds, self._changes(now, self.baselines.find(now, test))))

    def _changes(self, now: Record, found: Found) -> tuple[ChangePart, ...]:
        if found.record is None:
            return ()
        each = (compare_figure(now, found.record, threshold, found.earlier) for threshold in self.thresholds or SHOWN)
        return tuple(change for change in each if change is not None)

    def _about(self, found: Found) -> list[str]:
        """The failure that there is no baseline run."""
        if found.record is not None or not ((found.refused and self.thresholds) or MISSING in self.fail_on):
            return []
        return [f"no baseline run: {found.problem}"]

    def _fails(self, change: ChangePart) -> bool:
        return change.outcome == Outcome.WORSE.value or _wants_rounds(change) or change.outcome in self.fail_on


def _wants_rounds(change: ChangePart) -> bool:
    return change.outcome == INCONCLUSIVE and change.wanted is not None


def _words(change: ChangePart, found: Found) -> str:
    run = found.run.id if found.run else ""
    before = f" and {len(found.earlier)} before it" if found.earlier else ""
    return f"{in_words(change)}, against run {run}{before}"
