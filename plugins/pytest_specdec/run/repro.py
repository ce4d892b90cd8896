"""A red verdict hands over a bug report: the first red request, made small, as a script and as an issue's text.

`Look` says whether a request shows the fault at batch 1, `shrink` makes it smaller (the output first, since that makes
every later look cheaper), `script` writes it down, and `write_bug_report` is what a gate calls.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any

from pytest_specdec.engines.engine import Description, one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.vllm import CPU_ENVIRONMENT
from pytest_specdec.errors import EngineError, SpecdecError
from pytest_specdec.hardware import gpus
from pytest_specdec.models import parse, resolve
from pytest_specdec.record.parts import VerdictPart
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict.limits import agreement, reshaping_fields
from pytest_specdec.verdict.noise import unit_of
from pytest_specdec.verdict.truth import KNOWN
from pytest_specdec.workloads.workload import Request, Workload


@dataclass(frozen=True)
class Fault:
    """A request on which the arms differ.

    `position`: the first wrong token; `wanted`: what the target has there, None for an end; `gap`: the wrong token's
    distance to it in logits; `floor`: the noise floor there. Without a gap the difference is one of length, or stands
    under sampling fields that the rating does not see.
    """

    request: Request
    expected: tuple[int, ...]
    seen: tuple[int, ...]
    position: int
    wanted: int | None
    gap: float | None
    floor: float | None = None


class Look:
    """Looks for the fault of one engine; `floor` is the largest gap, in ULPs of `dtype`, that is noise."""

    def __init__(self, session: Session, spec: EngineSpec, floor: float, dtype: str) -> None:
        self._session, self._spec, self._floor, self._dtype = session, spec, floor, dtype
        self.runs = 0

    def __call__(self, request: Request) -> Fault | None:
        """The fault as this request shows it; None if it does not, or if an engine refuses the request or dies."""
        self.runs += 1
        try:
            return self._fault(request)
        except EngineError:
            return None

    def _fault(self, request: Request) -> Fault | None:
        seen = self._decode(self._spec, request)
        expected = self._decode(self._spec.target_only(), request)
        if seen == expected:
            return None
        position = agreement(expected, seen)
        if position == min(len(expected), len(seen)) or reshaping_fields(request):
            wanted = expected[position] if position < len(expected) else None
            return Fault(request, expected, seen, position, wanted, None)
        return self._beyond_the_floor(request, expected, seen)

    def _decode(self, spec: EngineSpec, request: Request) -> tuple[int, ...]:
        with self._session.pool.using(spec) as engine:
            return one_pass(engine, Workload("a bug report", (request,), 1)).generations[0].token_ids

    def _beyond_the_floor(self, request: Request, expected: tuple[int, ...], seen: tuple[int, ...]) -> Fault | None:
        with self._session.pool.using(self._spec.target_only()) as engine:
            (scores,) = engine.score([request], [seen])
        for at, score in enumerate(scores):
            floor = self._floor * unit_of(score, self._dtype)
            if not score.gap <= floor:
                return Fault(request, expected, seen, at, score.argmax, score.gap, floor)
        return None


Shows = Callable[[Request], "Fault | None"]
InTime = Callable[[], bool]


def shrink(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """The smallest fault found; no look is begun once `in_time` says no."""
    before = None
    while before != fault.request and in_time():
        before = fault.request
        fault = shorten_prompt(shorten_output(fault, shows, in_time), shows, in_time)
    return fault


def shorten_output(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """End soon after the wrong token. Near an end a step drafts less, so the end moves away until the fault shows."""
    request = fault.request
    step, tokens = 1, fault.position + 1
    while tokens < request.max_tokens and in_time():
        found = shows(replace(request, max_tokens=tokens))
        if found is not None:
            return found
        tokens, step = tokens + step, 2 * step
    return fault


def shorten_prompt(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """Leave out pieces of the prompt, large ones first; at least one token stays."""
    size = len(fault.request.prompt_ids) // 2
    while size:
        at = 0
        while at < len(fault.request.prompt_ids) and in_time():
            ids = fault.request.prompt_ids[:at] + fault.request.prompt_ids[at + size :]
            found = shows(replace(fault.request, prompt_ids=ids)) if ids else None
            fault, at = (found, at) if found is not None else (fault, at + size)
        size //= 2
    return fault


BACKENDS = ("transformers", "vllm", "fake")


def unwritable(spec: EngineSpec, request: Request) -> str | None:
    """Why no script can be written; None if one can."""
    if spec.backend not in BACKENDS:
        return f"no script is known for the engine {spec.backend!r}, only for {', '.join(BACKENDS)}"
    if spec.gateway is not None:
        return "the engine ran on another machine"
    if spec.adapter is not None:
        return f"the script loads no adapter: merge {spec.adapter} into the target first"
    asked = [name for name in ("stop", "min_tokens") if getattr(request, name)]
    return f"the request has {' and '.join(asked)}, which the script does not set" if asked else None


def script(spec: EngineSpec, fault: Fault, about: Description, cache: str | None) -> str:
    """A Python file that exits with 1 while the fault is there, 0 when it is gone, 2 when it could not be tried."""
    words = header(spec, fault, about).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    case = pformat(_case(spec, fault, about, cache), width=118, compact=True, sort_dicts=False)
    return Template(_template(spec.backend)).substitute(header=words, case=case, judge=_template("judge"))


def header(spec: EngineSpec, fault: Fault, about: Description) -> str:
    """What happens, what should, where, and how to run it; in Markdown."""
    facts = {**about.versions, "device": about.device, "driver": gpus().driver, "system": platform.platform()}
    table = (f"| {name} | {value} |" for name, value in facts.items() if value)
    environment = ["| environment | |", "|---|---|", *table]
    return "\n".join([*_what_happens(spec, fault), "", *environment, *_recipes(spec), "", *RUN])


RUN = (
    "Run it: `python THIS_FILE`. Exit code 1: the fault is there. 0: it is gone. 2: it could not be tried.",
    "Both arms decode greedily. Where they differ, the target alone rates each token that speculation emitted; a token",
    "whose logit is within the noise floor of the target's argmax is a tie and no fault.",
)


def _what_happens(spec: EngineSpec, fault: Fault) -> list[str]:
    drafter = f" with the drafter {spec.draft}" if spec.draft else ""
    seen = next(iter(fault.seen[fault.position :]), None)
    wanted, got = ("the end" if token is None else token for token in (fault.wanted, seen))
    far = "" if fault.gap is None else f", which the target rates {fault.gap:.4g} logits below its argmax"
    return [
        f"{spec.backend}: greedy output changes with speculation ({spec.method}, gamma = {spec.gamma}, {spec.dtype})",
        "",
        f"Target {spec.target}{drafter}; a prompt of {len(fault.request.prompt_ids)} token ids, "
        f"at most {fault.request.max_tokens} new tokens.",
        *(f"{name} = {own}" for name in ("speculative_options", "options") if (own := dict(getattr(spec, name)))),
        f"Expected token {fault.position}: {wanted}. Seen: {got}{far}.",
    ]


def _recipes(spec: EngineSpec) -> list[str]:
    made = [model for model in (spec.target, spec.draft) if model is not None and parse(model) is not None]
    if not made:
        return []
    asked = " ".join(f"'{model}'" for model in made)
    made_by = f"`python -m pytest_specdec.models make {asked}`"
    return ["", f"Models: `pip install pytest-specdec`, then {made_by} prints their folders, for --target and --draft."]


def _case(spec: EngineSpec, fault: Fault, about: Description, cache: str | None) -> dict[str, Any]:
    request = fault.request
    of_vllm = CPU_ENVIRONMENT if spec.backend == "vllm" and about.device == "cpu" else {}
    return {
        **spec.config(str if spec.backend == "fake" else partial(resolve, cache=cache)),
        "environment": {**of_vllm, **spec.environment},
        "on_cpu": about.device == "cpu",
        "prompt_ids": list(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "stop_tokens": sorted(request.stop_tokens(about.details.get("eos_token_ids") or ())),
        "sampling": dict(request.sampling),
        "expected": list(fault.expected),
        "seen": list(fault.seen),
        "floor": None if reshaping_fields(request) else fault.floor or 0.0,
    }


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / f"{name}.txt").read_text("utf-8")


def write_bug_report(session: Session, arms: Arms, verdict: VerdictPart, about: Description) -> list[str]:
    """Write the bug report of a red token-by-token verdict, and say where it lies or why there is none.

    Nothing is done, and nothing said, unless the settings name a folder and comparing both arms shows a finding.
    """
    shown = (each for each in verdict.findings if each.outcome in ("divergent", "length") and KNOWN not in each.sides)
    worst = next(shown, None)
    if session.settings.repro is None or verdict.calibration is None or worst is None or not arms.spec.speculates:
        return []
    try:
        return [f"bug report: {_report(session, arms, verdict, about, worst.request)}"]
    except SpecdecError as error:
        return [f"no bug report: {error}"]
    except OSError as error:
        return [f"no bug report: {session.settings.repro} cannot be written to ({error.strerror})"]


def _report(session: Session, arms: Arms, verdict: VerdictPart, about: Description, request: int) -> Path:
    spec, workload = arms.spec, arms.workload
    if (reason := unwritable(spec, workload.requests[request])) is not None:
        raise SpecdecError(reason)
    fault = _smallest(session, spec, workload, verdict, request)
    text = script(spec, fault, about, session.settings.cache)
    name = re.sub(r"[^\w.-]+", "-", f"{spec.backend}-{spec.label}-{workload.name}")
    path = Path(str(session.settings.repro)) / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.with_suffix(".md").write_text(f"{header(spec, fault, about)}\n\n```python\n{text}```\n", "utf-8")
    return path


def _smallest(session: Session, spec: EngineSpec, workload: Workload, verdict: VerdictPart, request: int) -> Fault:
    floor, dtype = verdict.noise_floor_ulps.value or 0, verdict.calibration.dtype if verdict.calibration else spec.dtype
    look, until = Look(session, spec, floor, dtype), time.monotonic() + session.settings.repro_seconds
    what = f"{spec.label}: request {request} of {workload.name} is made small for a bug report"
    with session.progress.doing(what, lambda: f"{look.runs} runs"):
        fault = look(workload.requests[request])
        if fault is None:
            alone = f"request {request} alone at batch 1 does not show the fault"
            raise SpecdecError(f"{alone}: it depends on its neighbours")
        fault = shrink(fault, look, lambda: time.monotonic() < until)
    size = f"{len(fault.request.prompt_ids)} prompt and {fault.request.max_tokens} output tokens"
    session.progress.announce(f"{spec.label}: the fault shows with {size}, after {look.runs} runs")
    return fault
