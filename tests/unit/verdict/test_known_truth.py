"""What a constructed pair's known truth adds to the verdict: faults of both arms, and of the drafter's own state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Chunk, Generation, Run, Score, Speculation
from pytest_specdec.models import expected_assistance, expected_continuation, expected_speculation
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import ForetoldPart, KnownTruthPart
from pytest_specdec.verdict.equivalence import Calibration, Certified, Finding, Outcome, Verdict, judge
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.noise import NoiseFloor, noise_floor
from pytest_specdec.verdict.truth import foretell, foretold_part, judge_drafts, judge_truth, truth_of, truth_part
from pytest_specdec.verdict.words import add_hints, describe_verdict, finding_parts
from pytest_specdec.workloads.workload import Request, Workload

TARGET, DRAFT = "constructed:tiny?memory=6", "constructed:tiny:draft?memory=6&alpha=0.6"
PROMPTS = tuple(tuple(range(start, start + 7)) for start in (100, 300))
TOKENS, GAMMA = 12, 3
TRUE = tuple(tuple(expected_continuation(TARGET, prompt, TOKENS)) for prompt in PROMPTS)
WORKLOAD = Workload("w", tuple(Request(prompt, TOKENS) for prompt in PROMPTS), 2)
SPEC = EngineSpec(backend="vllm", target=TARGET, draft=DRAFT, method="draft_model", gamma=GAMMA)
ABOUT = Description(vocabulary=1024, context=512, device="cpu", details={"counting": "vllm"})
FLOOR = noise_floor([Score(0.0, 10.0, 1)] * 9, "float32")
INSANE = noise_floor([Score(9.0 * (at < 9), 10.0, 1) for at in range(24)], "float32")
Answers = tuple[tuple[int, ...], ...]


def changed(answers: Answers, request: int = 1, at: int = 4) -> Answers:
    """The answers with one other token."""
    told = [list(each) for each in answers]
    told[request][at] = 3 + (told[request][at] + 1) % 1000
    return tuple(map(tuple, told))


def run_of(answers: Answers, counted: Speculation | None = None, steps: int = TOKENS) -> Run:
    """A round of these answers; each came in so many steps, the last of which carried the rest."""
    chunks = (*(Chunk(float(at), 1) for at in range(steps - 1)), Chunk(9.0, TOKENS - steps + 1))
    made = (Generation(prompt, each, "length", chunks) for prompt, each in zip(PROMPTS, answers, strict=True))
    return Run(tuple(made), counted, 0.0)


def calibration_of(answers: Answers, floor: NoiseFloor = FLOOR) -> Calibration:
    """What the target alone gave; every token is rated as its argmax."""
    rows = [
        (Certified(each, tuple(Score(0.0, 10.0, token) for token in each.token_ids)),)
        for each in run_of(answers).generations
    ]
    return Calibration(tuple(rows), floor, Facts())


def judged(
    ours: Answers, theirs: Answers, floor: NoiseFloor = FLOOR, gap: float = 3.0, speculates: bool = True
) -> Verdict:
    """The verdict by the arms, then by the truth; what differs is rated `gap` below the argmax."""
    calibration, runs = calibration_of(theirs, floor), {0: run_of(ours)}
    verdict = judge(WORKLOAD, calibration, runs, lambda _, outputs: [[Score(gap, 10.0, 1)] * TOKENS for _ in outputs])
    return judge_truth(verdict, truth_of(TARGET, WORKLOAD.requests), calibration, runs, speculates)


def first(verdict: Verdict) -> Finding:
    """The worst finding."""
    return verdict.findings[0]


def test_sound_arms_are_identical() -> None:
    """Nothing is found, and the tokens of both arms were compared."""
    verdict = judged(TRUE, TRUE)
    part = truth_part(truth_of(TARGET, WORKLOAD.requests), calibration_of(TRUE), [run_of(TRUE)])
    assert (verdict.outcome, verdict.findings) == (Outcome.IDENTICAL, ())
    assert part == KnownTruthPart(tokens=Figure(48), wrong=Figure(0))


def test_a_fault_of_both_arms_is_divergent_though_they_agree() -> None:
    """With request, position, what was expected and what came."""
    wrong = changed(TRUE)
    verdict = judged(wrong, wrong)
    assert (verdict.outcome, verdict.counts) == (Outcome.DIVERGENT, {"divergent": 1, "identical": 1})
    got, wanted = wrong[1][4], TRUE[1][4]
    assert first(verdict).detail == (
        f"from the known truth, both arms: token 4 is {got}, where {wanted} is known to follow; "
        "1 of 12 tokens are wrong"
    )
    assert (first(verdict).request, first(verdict).position) == (1, 4)
    lines = describe_verdict(verdict, "w").splitlines()
    shown = " ".join(map(str, TRUE[1][:4]))
    assert f"  known truth  {shown} [{wanted}]" in "\n".join(lines)
    assert f"  this engine  {shown} [{got}]" in "\n".join(lines)
    assert "target-only decoding is wrong" in lines[-1]


def test_wrong_tokens_of_both_arms_are_counted() -> None:
    """Those of the rounds and those of the calibration."""
    wrong = changed(TRUE)
    part = truth_part(truth_of(TARGET, WORKLOAD.requests), calibration_of(wrong), [run_of(wrong)] * 2)
    assert part == KnownTruthPart(tokens=Figure(72), wrong=Figure(3))


def test_a_control_that_fails_is_no_excuse() -> None:
    """A target that strays from its own argmax makes it undecidable, unless its tokens are known to be wrong."""
    wrong = changed(TRUE)
    assert judged(TRUE, TRUE, INSANE).outcome is Outcome.UNDECIDABLE
    assert judged(wrong, wrong, INSANE).outcome is Outcome.DIVERGENT
    for gap in (3.0, 99.0):
        alone = judged(wrong, TRUE, INSANE, gap)
        assert alone.outcome is Outcome.DIVERGENT
        assert first(alone).detail.startswith("from the known truth, this arm alone: token 4 is ")


def test_a_wrong_base_line_is_not_this_engines_fault() -> None:
    """Also where its own rating, as wrong as its tokens, speaks against this engine."""
    wrong = changed(TRUE)
    for gap in (0.0, 3.0):
        found = first(judged(TRUE, wrong, gap=gap))
        assert found.detail.startswith("from the known truth, target-only arm alone: token 4 is ")
        assert (found.seen, found.sides) == (wrong[1], ("known truth", "target only"))


def test_a_wrong_base_line_is_not_tried_alone_with_the_drafter() -> None:
    """The other hints are told."""

    def never(request: int) -> Generation:
        raise AssertionError(f"request {request} was decoded again")

    assert add_hints(judged(TRUE, changed(TRUE)), WORKLOAD, GAMMA, ABOUT, never).outcome is Outcome.DIVERGENT


def test_a_fault_of_speculation_is_told_as_before() -> None:
    """The target alone is right, so its rating says how far the token is off."""
    found = first(judged(changed(TRUE), TRUE))
    assert (found.gap, found.sides) == (3.0, ("target only", "this engine"))
    assert found.detail.startswith("token 0 is 3 below the target's argmax")


def test_no_tie_excuses_a_token_that_is_known_to_be_wrong() -> None:
    """The pair has no near-ties."""
    found = first(judged(changed(TRUE), TRUE, gap=0.0))
    assert (found.outcome, found.detail.split(":")[0]) == (Outcome.DIVERGENT, "from the known truth, this arm alone")


def test_the_target_alone_is_held_against_the_truth() -> None:
    """No other arm is named."""
    wrong = changed(TRUE)
    found = first(judged(wrong, wrong, speculates=False))
    assert found.detail.startswith("from the known truth: token 4 is ")


def test_the_sides_are_kept_in_the_record() -> None:
    """So that a report names them."""
    wrong = changed(TRUE)
    (part,) = finding_parts(judged(wrong, wrong).findings)
    assert (part.sides, part.expected[4], part.seen[4]) == (("known truth", "this engine"), TRUE[1][4], wrong[1][4])


def test_an_answer_to_another_prompt_is_not_compared() -> None:
    """It is called by its own name, also where the target alone is wrong."""
    other = Generation((1, *PROMPTS[0]), changed(TRUE, 0)[0], "length")
    runs = {0: Run((other, run_of(TRUE).generations[1]), None, 0.0)}
    calibration = calibration_of(changed(TRUE, 0))
    verdict = judge(WORKLOAD, calibration, runs, lambda *_: [])
    held = judge_truth(verdict, truth_of(TARGET, WORKLOAD.requests), calibration, runs, speculates=True)
    assert held.outcome is Outcome.INPUTS_DIFFER


def test_an_answer_that_ends_early_or_late_is_a_matter_of_length() -> None:
    """Its tokens are right as far as they are asked for."""
    for answer in (TRUE[0][:-1], (*TRUE[0], 5)):
        assert judged((answer, TRUE[1]), TRUE).outcome is Outcome.LENGTH


UNKNOWN = {
    "another model": ("Qwen/Qwen3-8B", {}, "Qwen/Qwen3-8B is not a constructed model"),
    "a margin": ("constructed:tiny?margin=0.1", {}, "has a margin or a layers_share, so rounding decides"),
    "penalties": (TARGET, {"sampling": {"frequency_penalty": 1.0}}, "what is chosen: frequency_penalty"),
    "withheld stops": (TARGET, {"min_tokens": 2, "stop_token_ids": TRUE[0][1:2]}, "min_tokens keeps ends"),
    "withheld EOS": ("constructed:tiny?ends=2", {"min_tokens": TOKENS, "ignore_eos": False}, "min_tokens keeps ends"),
    "a short prompt": ("constructed:tiny?memory=7", {}, "give prompts of 8 tokens or more"),
}


@pytest.mark.parametrize(("target", "fields", "said"), UNKNOWN.values(), ids=UNKNOWN)
def test_where_nothing_is_known_no_claim_is_made(target: str, fields: dict[str, object], said: str) -> None:
    """And the reason stands in the record."""
    requests = [Request(prompt, TOKENS, **fields) for prompt in PROMPTS]  # type: ignore[arg-type]
    truth = truth_of(target, requests)
    wrong = changed(TRUE)
    calibration, runs = calibration_of(wrong), {0: run_of(wrong)}
    verdict = judge(WORKLOAD, calibration, runs, lambda *_: [])
    assert judge_truth(verdict, truth, calibration, runs, speculates=True) is verdict
    assert isinstance(truth, str)
    assert said in truth
    assert truth_part(truth, calibration, runs) == missing(KnownTruthPart, truth)


COUNTED = expected_speculation(TARGET, DRAFT, PROMPTS, TOKENS, GAMMA)
STEPS = COUNTED.drafts // 2 + 1  # of each answer, the prompt's own among them
LOWERED = Speculation(
    COUNTED.drafts,
    COUNTED.draft_tokens,
    COUNTED.accepted_tokens - 1,
    (COUNTED.accepted_per_position[0], COUNTED.accepted_per_position[1], COUNTED.accepted_per_position[2] - 1),
)


def drafts_judged(
    *counted: Speculation | None, about: Description = ABOUT, steps: int = STEPS, spec: EngineSpec = SPEC
) -> tuple[Verdict, ForetoldPart]:
    """Of rounds with right tokens and these counters."""
    runs = {at: run_of(TRUE, each, steps) for at, each in enumerate(counted)}
    verdict = judge(WORKLOAD, calibration_of(TRUE), runs, lambda *_: [])
    foretold = foretell(spec, about, WORKLOAD, truth_of(TARGET, WORKLOAD.requests), runs.values())
    return judge_drafts(verdict, foretold, runs), foretold_part(foretold, [*runs.values()])


def test_counters_as_foretold_are_identical_and_recorded() -> None:
    """Over both rounds."""
    verdict, part = drafts_judged(COUNTED, COUNTED)
    both = COUNTED + COUNTED
    assert verdict.outcome is Outcome.IDENTICAL
    assert part == ForetoldPart(
        drafts=Figure(both.drafts),
        draft_tokens=Figure(both.draft_tokens),
        accepted_tokens=Figure(both.accepted_tokens),
        accepted_per_position=Figure(both.accepted_per_position),
    )


def test_lowered_acceptance_is_draft_state() -> None:
    """Though every token is right; with what was foretold and counted, in the round that differs."""
    verdict, _ = drafts_judged(COUNTED, LOWERED)
    first_line, second, *_, last = describe_verdict(verdict, "w").splitlines()
    by_position = [", ".join(map(str, each.accepted_per_position)) for each in (COUNTED, LOWERED)]
    assert (verdict.outcome, verdict.passes) == (Outcome.DRAFT_STATE, False)
    assert first_line == "draft state: 4 identical of 4 generations on w"
    assert second.startswith(f"round 1: foretold {COUNTED.accepted_tokens} of {COUNTED.draft_tokens} draft tokens")
    assert [f"(by position: {each})" in second for each in by_position] == [True, True]
    assert "the drafter's own KV cache" in last


def test_an_engine_without_positions_is_held_by_its_totals() -> None:
    """As many accepted is as foretold, one fewer is not."""
    plain = [Speculation(each.drafts, each.draft_tokens, each.accepted_tokens) for each in (COUNTED, LOWERED)]
    assert [drafts_judged(each)[0].outcome for each in plain] == [Outcome.IDENTICAL, Outcome.DRAFT_STATE]


def test_each_engine_is_held_against_its_own_way_of_counting() -> None:
    """What Transformers counts is another number than what vLLM does."""
    assisted = expected_assistance(TARGET, DRAFT, PROMPTS, TOKENS, GAMMA)
    about = Description(vocabulary=1024, context=512, device="cpu", details={"counting": "transformers"})
    assert assisted != COUNTED
    assert drafts_judged(assisted, about=about)[0].outcome is Outcome.IDENTICAL
    assert drafts_judged(COUNTED, about=about)[0].outcome is Outcome.DRAFT_STATE


def described(**details: object) -> Description:
    """An engine that says this of itself."""
    return Description(vocabulary=1024, context=512, device="cpu", details={"counting": "vllm", **details})


CUT = Speculation(COUNTED.drafts, COUNTED.draft_tokens - 1, LOWERED.accepted_tokens, LOWERED.accepted_per_position)
NO_CLAIM = {
    "no counters": (None, {}, "the engine gave no counters"),
    "an unknown way of counting": (LOWERED, {"about": described(counting=None)}, "cannot be foretold"),
    "options": (
        LOWERED,
        {"spec": replace(SPEC, speculative_options={"a": 1})},
        "with these options cannot be foretold",
    ),
    "drafts that are looked up": (LOWERED, {"spec": replace(SPEC, method="ngram")}, "cannot be foretold"),
    "a drafter that is not constructed": (
        LOWERED,
        {"spec": replace(SPEC, draft="d")},
        "d is not a constructed model",
    ),
    "the end of the context": (LOWERED, {"about": described(draft_context=24)}, "the end of the context of 24"),
    "steps without drafts": (LOWERED, {"steps": STEPS + 1}, "steps without a draft are not foretold"),
    "drafts cut short": (CUT, {}, "some drafts were cut short"),
    "a smaller drafter": (
        LOWERED,
        {"spec": replace(SPEC, draft=f"{DRAFT}&vocab=900")},
        "tiny-draft has 900 tokens, fewer than the target's 1024",
    ),
    "no speculation": (LOWERED, {"spec": SPEC.target_only()}, "the engine does not speculate"),
}


@pytest.mark.parametrize(("counted", "given", "said"), NO_CLAIM.values(), ids=NO_CLAIM)
def test_where_counters_cannot_be_foretold_no_claim_is_made(
    counted: Speculation | None, given: dict[str, object], said: str
) -> None:
    """And the reason stands in the record."""
    verdict, part = drafts_judged(counted, **given)  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.IDENTICAL
    assert said in str(part.accepted_tokens.reason)


@pytest.mark.parametrize(("left", "claims"), [(1, False), (2, True)])
def test_of_a_prompt_with_one_token_left_to_read_nothing_is_foretold(left: int, claims: bool) -> None:
    """As after a warm prefix cache: vLLM counts drafts in its first step, and made none."""
    run = run_of(TRUE, COUNTED, STEPS)
    warm = [replace(each, cached_tokens=len(each.prompt_ids) - left) for each in run.generations]
    told = foretell(SPEC, ABOUT, WORKLOAD, truth_of(TARGET, WORKLOAD.requests), [replace(run, generations=tuple(warm))])
    assert (told == COUNTED) == claims
    assert claims or "one token of the prompt is left to read" in str(told)


def test_an_answer_that_may_stop_is_not_foretold() -> None:
    """Its last round is not known."""
    stopping = Workload("w", tuple(Request(prompt, TOKENS, stop_token_ids=(7,)) for prompt in PROMPTS), 2)
    told = foretell(SPEC, ABOUT, stopping, truth_of(TARGET, stopping.requests), [])
    assert told == "answers may end at EOS or a stop, and rounds with them"
