"""A bug report of a red verdict: the fault is looked for, made small, and written down with all that shows it."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.progress import Progress
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import CalibrationPart, FindingPart, VerdictPart
from pytest_specdec.run.repro import Fault, Look, header, script, shrink, unwritable, write_bug_report
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.workload import Request, Workload

FAULTY = EngineSpec(
    backend="fake", target="t", method="draft_model", draft="d", gamma=3, speculative_options={"fault": "wrong token"}
)
SOUND = replace(FAULTY, speculative_options={})
LATE = replace(FAULTY, speculative_options={"fault": "stops early"})
REQUEST = Request((23, 4, 61, 8, 5, 9), 16)
ABOUT = Description(128, 2048, "cpu", {"vllm": "0.32.0"}, {"eos_token_ids": [2]})


def session(**settings: str) -> Session:
    """A session of fake engines."""
    return Session(Settings.resolve(settings, {}, {}), Pool(FakeEngine), time.perf_counter, Progress())


def always() -> bool:
    return True


def shows_where(holds: Callable[[Request], bool], position: int = 4) -> Callable[[Request], Fault | None]:
    """A look that sees the fault wherever this holds."""

    def look(request: Request) -> Fault | None:
        return Fault(request, (1,), (2,), position, 1, 8.0) if holds(request) else None

    return look


def test_a_wrong_token_is_seen_with_its_distance() -> None:
    """Both arms' tokens, the target's own choice, and how far the seen one lies below it."""
    fault = Look(session(), FAULTY, 2, "bfloat16")(REQUEST)
    assert fault is not None
    assert fault.seen[fault.position] != fault.wanted == fault.expected[fault.position]
    assert (fault.gap, fault.floor) == (8.0, 0.125)


def test_an_early_end_is_a_fault_without_a_distance() -> None:
    """The position is where one side ends."""
    fault = Look(session(), LATE, 2, "bfloat16")(REQUEST)
    assert fault is not None
    assert (fault.gap, fault.position) == (None, len(fault.seen))


def test_a_sound_engine_and_a_tie_show_nothing() -> None:
    """A difference within the floor is none."""
    assert Look(session(), SOUND, 2, "bfloat16")(REQUEST) is None
    assert Look(session(), FAULTY, 128, "bfloat16")(REQUEST) is None


def test_an_engine_that_dies_shows_nothing() -> None:
    """The search goes on with another request."""
    assert Look(session(), replace(FAULTY, speculative_options={"fault": "dies"}), 2, "bfloat16")(REQUEST) is None


def test_the_prompt_shrinks_to_the_tokens_that_matter() -> None:
    """Of 64 tokens, the two without which nothing is wrong."""
    look = shows_where(lambda request: {7, 40} <= set(request.prompt_ids))
    start = look(Request(tuple(range(64)), 32))
    assert start is not None
    assert shrink(start, look, always).request.prompt_ids == (7, 40)


def test_the_output_ends_as_soon_as_the_fault_shows() -> None:
    """The wrong token is number 4, but shows only if three more tokens may follow."""
    look = shows_where(lambda request: request.max_tokens >= 8)
    start = look(Request((5,), 100))
    assert start is not None
    assert shrink(start, look, always).request.max_tokens == 8


def test_a_prompt_never_shrinks_to_nothing() -> None:
    """An engine cannot decode from no token."""
    start = shows_where(lambda request: True)(REQUEST)
    assert start is not None
    assert len(shrink(start, shows_where(lambda request: True), always).request.prompt_ids) == 1


def test_when_time_is_up_nothing_more_is_tried() -> None:
    """What was found so far is kept."""
    looks: list[Request] = []
    start = Fault(REQUEST, (1,), (2,), 4, 1, 8.0)

    def look(request: Request) -> Fault | None:
        looks.append(request)
        return replace(start, request=request)

    found = shrink(start, look, lambda: len(looks) < 2)
    assert len(looks) == 2
    assert found.request == looks[-1]


@pytest.mark.parametrize("backend", ["vllm", "transformers"])
def test_the_script_is_python_on_the_engine_alone(backend: str, tmp_path: Path) -> None:
    """It imports nothing of this package, and holds ids, settings and both sides' tokens."""
    spec = replace(FAULTY, backend=backend, target="hub/target", draft="hub/draft", speculative_options={})
    fault = Fault(REQUEST, (7, 8, 9), (7, 8, 3), 2, 9, 8.0, 0.125)
    text = script(spec, fault, ABOUT, str(tmp_path))
    assert ("VLLM_CPU" in text) == (backend == "vllm")
    tree = ast.parse(text)
    modules = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert backend in modules
    assert [module for module in modules if "specdec" in module] == []
    (case,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    told = [case[key] for key in ("target", "draft", "gamma", "prompt_ids", "expected", "seen", "floor")]
    assert told == ["hub/target", "hub/draft", 3, [23, 4, 61, 8, 5, 9], [7, 8, 9], [7, 8, 3], 0.125]


def judge_by_script(expected: list[int], seen: list[int], gaps: list[float], floor: float | None = 0.125) -> int:
    """The exit code of the script's own judgement."""
    template = Path(str(write_bug_report.__code__.co_filename)).with_name("templates") / "judge.txt"
    namespace: dict[str, Any] = {"CASE": {"floor": floor}}
    exec(template.read_text(), namespace)
    return int(namespace["judge"](expected, seen, gaps))


@pytest.mark.parametrize(
    ("expected", "seen", "gaps", "floor", "code"),
    [
        ([1, 2], [1, 2], [0.0, 0.0], 0.125, 0),
        ([1, 2], [1, 3], [0.0, 0.1], 0.125, 0),
        ([1, 2], [1, 3], [0.0, 8.0], 0.125, 1),
        ([1, 2], [1, 3], [0.0, float("nan")], 0.125, 1),
        ([1, 2], [1], [0.0], 0.125, 1),
        ([1], [1, 2], [0.0, 0.0], 0.125, 1),
        ([1, 2], [1, 3], [0.0, 0.1], None, 1),
    ],
    ids=["same", "tie", "wrong", "not a number", "too short", "too long", "penalised"],
)
def test_the_script_judges_as_the_gate_does(
    expected: list[int], seen: list[int], gaps: list[float], floor: float | None, code: int
) -> None:
    """Equal or tied is 0, anything else 1."""
    assert judge_by_script(expected, seen, gaps, floor) == code


def test_the_words_name_fault_versions_and_models() -> None:
    """Expected and seen token, the environment as a table, and how a reader makes the models."""
    spec = replace(FAULTY, backend="vllm", target="constructed:tiny", draft='evil """ name')
    words = header(spec, Fault(REQUEST, (7,), (3,), 0, 7, 8.0), ABOUT)
    assert "Expected token 0: 7. Seen: 3, which the target rates 8 logits below its argmax." in words
    assert "| vllm | 0.32.0 |" in words
    assert "python -m pytest_specdec.models make 'constructed:tiny'" in words
    ast.parse(script(replace(spec, target="t"), Fault(REQUEST, (7,), (3,), 0, 7, 8.0), ABOUT, None))


def test_what_a_script_cannot_show_is_refused_in_words() -> None:
    """Another engine, another machine, an adapter, stop texts."""
    there = replace(FAULTY, backend="vllm")
    assert "no script is known for the engine 'other'" in str(unwritable(replace(FAULTY, backend="other"), REQUEST))
    assert "the request has stop" in str(unwritable(there, replace(REQUEST, stop=("x",))))
    assert "another machine" in str(unwritable(replace(there, gateway="ssh=a"), REQUEST))
    adapted = replace(there, options={"adapter": "lora"})
    assert "loads no adapter: merge lora into the target first" in str(unwritable(adapted, REQUEST))
    assert unwritable(there, REQUEST) is None


WRONG = FindingPart(request=0, round=0, outcome="divergent", detail="token 3")
RED_VERDICT = VerdictPart(noise_floor_ulps=Figure(2), calibration=CalibrationPart(), findings=(WRONG,))


def test_nothing_is_done_unless_asked_or_not_red() -> None:
    """Without a folder, and without findings, not one engine is started."""
    red = RED_VERDICT
    quiet, asked = session(), session(repro="folder")
    workload = Workload("w", (REQUEST,), 1)
    assert write_bug_report(quiet, Arms(FAULTY, workload), red, ABOUT) == []
    assert write_bug_report(asked, Arms(FAULTY, workload), replace(red, findings=()), ABOUT) == []
    sampled = replace(red, calibration=None)  # a script compares the arms greedily
    assert write_bug_report(asked, Arms(FAULTY, workload), sampled, ABOUT) == []
    known = replace(WRONG, sides=("known truth", "this engine"))  # which no comparison of the arms shows
    assert write_bug_report(asked, Arms(FAULTY, workload), replace(red, findings=(known,)), ABOUT) == []
    assert quiet.pool.loads == asked.pool.loads == []


def test_why_there_is_no_report_is_said() -> None:
    """The gate's message has it."""
    red, workload = RED_VERDICT, Workload("w", (REQUEST,), 1)
    ours = Session(
        Settings.resolve({"repro": "folder"}, {}, {}),
        Pool(lambda spec: FakeEngine(replace(spec, backend="fake"))),
        time.perf_counter,
        Progress(),
    )
    (line,) = write_bug_report(ours, Arms(replace(SOUND, backend="vllm"), workload), red, ABOUT)
    assert line == "no bug report: request 0 alone at batch 1 does not show the fault: it depends on its neighbours"
    (line,) = write_bug_report(ours, Arms(replace(FAULTY, backend="other"), workload), red, ABOUT)
    assert line.startswith("no bug report: no script is known for the engine 'other'")
