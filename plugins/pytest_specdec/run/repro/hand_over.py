"""From a red verdict to files in a folder: the first red request, made small, as a script and as an issue's text."""

from __future__ import annotations

import re
import time
from pathlib import Path

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import SpecdecError
from pytest_specdec.record.parts import VerdictPart
from pytest_specdec.run.repro.look import Fault, Look
from pytest_specdec.run.repro.script import header, script, unwritable
from pytest_specdec.run.repro.shrink import shrunk
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict.truth import KNOWN
from pytest_specdec.workloads.workload import Workload

SHOWN_BY = ("divergent", "length")


def write_bug_report(session: Session, arms: Arms, verdict: VerdictPart, about: Description) -> list[str]:
    """Write the bug report of a red token-by-token verdict, and say where it lies or why there is none.

    Nothing is done, and nothing said, unless the settings name a folder and the verdict has a
    finding that a script can show.
    """
    if session.settings.repro is None or not _requests(verdict) or not arms.spec.speculates:
        return []
    try:
        return [f"bug report: {_report(session, arms, verdict, about)}"]
    except SpecdecError as error:
        return [f"no bug report: {error}"]
    except OSError as error:
        return [f"no bug report: {session.settings.repro} cannot be written to ({error.strerror})"]


def _report(session: Session, arms: Arms, verdict: VerdictPart, about: Description) -> Path:
    spec, workload = arms.spec, arms.workload
    floor, request = verdict.noise_floor_logits.value or 0.0, _requests(verdict)[0]
    if (reason := unwritable(spec, workload.requests[request])) is not None:
        raise SpecdecError(reason)
    fault = _smallest(session, spec, workload, floor, request)
    text = script(spec, fault, about, floor, session.settings.cache)
    path = Path(str(session.settings.repro)) / f"{_file_name(f'{spec.backend}-{spec.label}-{workload.name}')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.with_suffix(".md").write_text(f"{header(spec, fault, about)}\n\n```python\n{text}```\n", "utf-8")
    return path


def _requests(verdict: VerdictPart) -> list[int]:
    """The red requests that a script can show by comparing both arms, worst first."""
    shown = [finding for finding in verdict.findings if finding.outcome in SHOWN_BY and KNOWN not in finding.sides]
    return [finding.request for finding in shown]


def _smallest(session: Session, spec: EngineSpec, workload: Workload, floor: float, request: int) -> Fault:
    look, until = Look(session, spec, floor), time.monotonic() + session.settings.repro_seconds
    what = f"{spec.label}: request {request} of {workload.name} is made small for a bug report"
    with session.progress.doing(what, lambda: f"{look.runs} runs"):
        fault = look(workload.requests[request])
        if fault is None:
            alone = f"request {request} alone at batch 1 does not show the fault"
            raise SpecdecError(f"{alone}: it depends on its neighbours")
        fault = shrunk(fault, look, lambda: time.monotonic() < until)
    size = f"{len(fault.request.prompt_ids)} prompt and {fault.request.max_tokens} output tokens"
    session.progress.announce(f"{spec.label}: the fault shows with {size}, after {look.runs} runs")
    return fault


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label)
