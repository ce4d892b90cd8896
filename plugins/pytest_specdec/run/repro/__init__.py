"""A red verdict hands over a bug report: a script on the engine's public API alone, with the smallest request

`look` runs both arms on one request and says whether the fault shows, `shrink` makes the request smaller while it does,
`script` writes it down, and `hand_over` is what a gate calls.
"""

from pytest_specdec.run.repro.hand_over import write_bug_report

__all__ = ["write_bug_report"]
