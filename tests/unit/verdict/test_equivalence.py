"""The verdict on hand-made generations: each outcome, and that nothing slips through as identical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.generation import Generation, Run, Score
from pytest_specdec.verdict.equivalence import Calibration, Certified, Outcome, Verdict, judge
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.noise import NoiseFloor, noise_floor
from pytest_specdec.verdict.words import describe_verdict
from pytest_specdec.workloads.workload import Request, Workload

PROMPT = (5, 6, 7)
Channels = tuple[tuple[str, str], ...] | None
FLOOR = noise_floor([Score(0.0625 * (at < 3), 10.0, 1) for at in range(100)], "bfloat16")


def request_for(tokens: Sequence[int], **limits: object) -> Request:
    return Request(PROMPT, max_tokens=len(tokens), **limits)  # type: ignore[arg-type]


def generation(tokens: Sequence[int], finish: str = "length", prompt: tuple[int, ...] = PROMPT) -> Generation:
    return Generation(prompt, tuple(tokens), finish)


def never(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[Sequence[Score]]:
    raise AssertionError("nothing had to be rescored")


def gaps(*row: float):  # type: ignore[no-untyped-def]
    return lambda requests, outputs: [[Score(gap, 10.0, 1) for gap in row] for _ in outputs]


def calibration_of(
    *expected: Sequence[Generation], floor: NoiseFloor = FLOOR, facts: Facts | None = None
) -> Calibration:
    """What target-only generations certify, every token of theirs the argmax."""
    rows = [tuple(Certified(each, exact(each)) for each in several) for several in expected]
    return Calibration(tuple(rows), floor, facts or Facts())


def exact(of: Generation) -> tuple[Score, ...]:
    return tuple(Score(0.0, 10.0, token) for token in of.token_ids)


def text_of(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> list[str]:
    """One letter a token."""
    return ["".join(chr(ord("a") + token) for token in output) for output in outputs]


def verdict_on(
    seen: Generation, expected: Generation, rescore=never, request: Request | None = None, **calibration
) -> Verdict:  # type: ignore[no-untyped-def]
    asked = request or request_for(expected.token_ids)
    known = calibration_of([expected], **calibration)
    return judge(Workload("w", (asked,), 1), known, {0: Run((seen,), None, 0.0)}, rescore, text_of)


def test_the_same_tokens_are_identical_without_rescoring() -> None:
    verdict = verdict_on(generation([1, 2, 3]), generation([1, 2, 3]))
    assert (verdict.outcome, verdict.counts, verdict.passes) == (Outcome.IDENTICAL, {"identical": 1}, True)


CHANNELS = {
    "lost": ((("reasoning", "so be it"),), "content is nothing, by the target alone 'yes'"),
    "moved": ((("content", "be it yes"), ("reasoning", "so")), "content is 'be it yes', by the target alone 'yes'"),
    "all lost": (None, "content is nothing, by the target alone 'yes'"),
}


@pytest.mark.parametrize(("said", "told"), CHANNELS.values(), ids=CHANNELS)
def test_the_same_tokens_said_otherwise_in_a_chat_are_a_matter_of_text(said: Channels, told: str) -> None:
    """A parser lost what came in a burst with the end of the reasoning, or put it elsewhere."""
    alone = replace(generation([1, 2, 3]), channels=(("content", "yes"), ("reasoning", "so be it")))
    verdict = verdict_on(replace(generation([1, 2, 3]), channels=said), alone)
    assert (verdict.outcome, verdict.findings[0].detail) == (Outcome.TEXT, f"same tokens, but {told}")
    assert verdict_on(alone, alone).outcome is Outcome.IDENTICAL
    assert verdict_on(alone, generation([1, 2, 3])).outcome is Outcome.IDENTICAL  # a worker is no chat


def test_a_difference_within_the_floor_is_a_tie_and_is_told() -> None:
    verdict = verdict_on(generation([1, 9, 3]), generation([1, 2, 3]), gaps(0.0, 0.125, 0.0))
    assert (verdict.outcome, verdict.passes, verdict.max_gap) == (Outcome.TIE, True, 0.125)
    assert (verdict.findings[0].position, verdict.findings[0].gap, verdict.findings[0].worst) == (1, 0.125, 1)


def test_a_difference_beyond_the_floor_is_divergent() -> None:
    verdict = verdict_on(generation([1, 9, 3]), generation([1, 2, 3]), gaps(0.0, 0.25, 0.0))
    assert (verdict.outcome, verdict.passes) == (Outcome.DIVERGENT, False)
    assert verdict.findings[0].detail.startswith("token 1 is 0.25 below the target's argmax 1 (4 ULPs)")


def test_a_fault_after_a_tie_is_still_found() -> None:
    verdict = verdict_on(generation([9, 2, 8]), generation([1, 2, 3]), gaps(0.1, 0.0, 5.0))
    assert (verdict.outcome, verdict.findings[0].worst) == (Outcome.DIVERGENT, 2)


def test_a_tie_never_explains_a_gap_that_is_no_number() -> None:
    verdict = verdict_on(generation([1, 9, 3]), generation([1, 2, 3]), gaps(0.0, math.nan, 0.0))
    assert verdict.outcome is Outcome.DIVERGENT


def test_output_equal_to_the_target_at_batch_one_is_identical_too() -> None:
    workload = Workload("w", (request_for([1, 2]),), 4)
    calibration = calibration_of([generation([1, 2]), generation([1, 7])])
    verdict = judge(workload, calibration, {0: Run((generation([1, 7]),), None, 0.0)}, never)
    assert verdict.outcome is Outcome.IDENTICAL


def test_a_shorter_answer_is_a_length_fault_although_every_token_is_right() -> None:
    verdict = verdict_on(generation([1, 2]), generation([1, 2, 3]))
    assert (verdict.outcome, verdict.passes) == (Outcome.LENGTH, False)


def test_going_on_past_the_end_is_a_length_fault_that_says_where() -> None:
    asked = Request(PROMPT, max_tokens=8, ignore_eos=False)
    verdict = verdict_on(generation([1, 2, 3, 4], "stop"), generation([1, 2], "stop"), request=asked)
    assert verdict.findings[0].detail == "continued past the end at 2: 4 tokens where the target alone stops after 2"


def test_another_finish_reason_is_a_length_fault() -> None:
    asked = Request(PROMPT, max_tokens=3, ignore_eos=False)
    verdict = verdict_on(generation([1, 2, 3], "stop"), generation([1, 2, 3]), request=asked)
    assert verdict.outcome is Outcome.LENGTH
    assert verdict.findings[0].detail == "same tokens, but finished by 'stop', not 'length'"


@pytest.mark.parametrize("seen", [PROMPT[:-1], (*PROMPT, 8), (0, *PROMPT), (*PROMPT[:-1], PROMPT[-1] + 1)])
def test_a_prompt_of_another_length_or_content_never_passes(seen: tuple[int, ...]) -> None:
    """A prompt that was decoded and encoded again on its way; the answer itself may be the very same."""
    verdict = verdict_on(generation([1, 2, 3], prompt=seen), generation([1, 2, 3]))
    assert (verdict.outcome, verdict.passes) == (Outcome.INPUTS_DIFFER, False)


def test_a_doubled_bos_is_named() -> None:
    doubled = generation([1, 2, 3], prompt=(0, *PROMPT))
    detail = verdict_on(doubled, generation([1, 2, 3])).findings[0].detail
    assert detail == "the engine put token 0 before the prompt: is BOS added twice?"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(None, "length"), ("abort", "engine error"), ("error", "engine error"), ("stop", "length"), ("length", "length")],
)
def test_what_is_cut_off_after_a_tie_is_no_tie(reason: str | None, outcome: str) -> None:
    """Three of 48 tokens, each within the floor, whatever the engine says of their end."""
    asked = Request(PROMPT, 48, stop=("none of these",))
    cut = Generation(PROMPT, (1, 9, 3), reason, text="bjd")
    assert verdict_on(cut, generation(range(48)), gaps(0.0, 0.1, 0.0), request=asked).outcome.value == outcome


@pytest.mark.parametrize(
    ("text", "outcome"), [("bc", "identical"), ("bx", "text"), ("bcd", "text"), ("b", "text"), (None, "identical")]
)
def test_the_same_ids_with_another_text_are_not_identical(text: str | None, outcome: str) -> None:
    asked = Request(PROMPT, 9, ignore_eos=False, stop=("d",))
    seen, expected = (Generation(PROMPT, (1, 2, 3), "stop", text=each) for each in (text, "bc"))
    verdict = verdict_on(seen, expected, request=asked)
    assert (verdict.outcome.value, verdict.passes) == (outcome, outcome == "identical")


def test_a_tie_does_not_excuse_a_text_that_is_not_that_of_its_ids() -> None:
    seen = Generation(PROMPT, (1, 9, 3), "length", text="bcd")
    verdict = verdict_on(seen, generation([1, 2, 3]), gaps(0.0, 0.1, 0.0))
    assert verdict.outcome is Outcome.TEXT
    assert verdict.findings[0].detail == "text differs from that of its ids at character 1: 'cd', not 'jd'"


@pytest.mark.parametrize(
    "sampling",
    [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"n": 1}, {"logprobs": 3}, {"skip_special_tokens": False}],
)
def test_a_field_that_cannot_change_a_greedy_choice_neither_excuses_nor_forbids(sampling: dict[str, float]) -> None:
    asked = request_for([1, 2, 3], sampling=sampling)
    pair = generation([1, 9, 3]), generation([1, 2, 3])
    assert verdict_on(*pair, gaps(0.0, 0.1, 0.0), request=asked).outcome is Outcome.TIE
    assert verdict_on(*pair, gaps(0.0, 5.0, 0.0), request=asked).outcome is Outcome.DIVERGENT


@pytest.mark.parametrize(
    ("tokens", "says_so", "outcome"),
    [
        ([1, 2], True, "identical"),
        ([1, 2], False, "length"),
        ([1, 9], True, "tie"),
        ([1], True, "divergent"),
        ([1, 2, 99], False, "identical"),
    ],
)
def test_an_engine_may_leave_eos_out_if_it_says_so(tokens: list[int], says_so: bool, outcome: str) -> None:
    """A natural end is then as the target's own; what is cut off is not: the target wants no end there."""
    asked = Request(PROMPT, 9, ignore_eos=False)
    facts = Facts(eos_token_ids=frozenset({99}))
    leaves = replace(facts, keeps_ends=not says_so)
    known = calibration_of([generation([1, 2, 99], "stop")], facts=facts).beside(leaves, 0.001)

    def rate(_: object, outputs: Sequence[Sequence[int]]) -> list[list[Score]]:
        wanted, gaps_of = (1, 2, 99), {9: 0.1, 99: 5.0}
        rows = [list(zip(output, wanted, strict=False)) for output in outputs]
        return [[Score(0.0 if each == best else gaps_of[each], 10.0, best) for each, best in row] for row in rows]

    seen = Run((generation(tokens, "stop"),), None, 0.0)
    assert judge(Workload("w", (asked,), 1), known, {0: seen}, rate).outcome.value == outcome


def test_text_that_agrees_while_ids_do_not_is_told() -> None:
    asked = Request(PROMPT, 9, ignore_eos=False, stop=("END",))
    expected = Generation(PROMPT, (1, 2), "stop", text="ha")
    seen = Generation(PROMPT, (1, 2, 3), "stop", text="ha")
    verdict = verdict_on(seen, expected, request=asked)
    assert verdict.outcome is Outcome.LENGTH
    assert verdict.findings[0].detail.endswith("text equal, ids differ")


def test_a_reshaped_choice_is_not_excused_by_raw_logits_and_names_its_fields() -> None:
    asked = request_for([1, 2, 3], sampling={"frequency_penalty": 0.5})
    verdict = verdict_on(generation([1, 9, 3]), generation([1, 2, 3]), gaps(0.0, 0.01, 0.0), request=asked)
    assert verdict.outcome is Outcome.DIVERGENT
    assert verdict.findings[0].detail == "differs from the target alone under frequency_penalty"


def test_an_end_that_both_arms_miss_is_found_absolutely() -> None:
    """min_tokens = 2 permits the end at token 2; both arms give one token more."""
    asked = Request(PROMPT, 8, min_tokens=2, ignore_eos=False)
    both = generation([1, 1, 1, 99], "stop")
    scores = (Score(9.0, 10.0, 99), Score(9.0, 10.0, 99), Score(9.0, 10.0, 99), Score(0.0, 10.0, 99))
    calibration = Calibration(((Certified(both, scores),),), FLOOR, Facts(eos_token_ids=frozenset({99})))
    verdict = judge(Workload("w", (asked,), 1), calibration, {0: Run((both,), None, 0.0)}, never)
    assert verdict.outcome is Outcome.LENGTH
    assert verdict.findings[0].detail == ("missed EOS at token 2; min_tokens = 2 permits it there, in both arms")


def test_an_end_that_min_tokens_forbids_is_no_tie() -> None:
    """The target is rated without the ends that are withheld, so that one which comes nevertheless lies above it."""
    asked = Request(PROMPT, 8, min_tokens=8, ignore_eos=False)
    seen, alone = generation([10, 11, 2, *[30] * 5]), generation([10, 11, 20, *[30] * 5])
    facts = Facts(eos_token_ids=frozenset({2}))
    verdict = verdict_on(seen, alone, gaps(0.0, 0.0, -1.5, *[0.0] * 5), request=asked, facts=facts)
    assert verdict.outcome is Outcome.LENGTH
    assert verdict.findings[0].detail == "EOS at 2 (token 2), where min_tokens = 8 forbids it"


def test_more_near_ties_than_the_calibration_has_are_divergent_although_each_is_within_the_floor() -> None:
    ids = list(range(3, 103))
    changed = [token + 200 for token in ids]
    verdict = verdict_on(generation(changed), generation(ids), gaps(*[0.1] * 100))
    assert (verdict.counts["tie"], verdict.outcome, verdict.near_ties.too_many) == (1, Outcome.DIVERGENT, True)
    in_float32 = replace(verdict, limits=replace(verdict.limits, floor=replace(verdict.floor, dtype="float32")))
    assert "each gap is within the floor, but there are too many" in describe_verdict(in_float32, "w")


def test_repeated_rounds_are_one_observation_of_near_ties() -> None:
    ids, changed = generation([1, 2, 3]), generation([1, 9, 3])
    workload = Workload("w", (request_for([1, 2, 3]),), 1)
    row = [Score(0.0, 1.0, 1), Score(0.0, 1.0, 1), Score(0.1, 1.0, 1)]
    verdict = judge(
        workload, calibration_of([ids]), dict.fromkeys(range(9), Run((changed,), None, 0.0)), lambda *_: [row] * 9
    )
    assert (verdict.near_ties.judged, verdict.near_ties.judged_tokens) == (1, 3)


def test_an_empty_answer_never_passes() -> None:
    assert verdict_on(generation([]), generation([1, 2, 3])).outcome is Outcome.LENGTH


def test_a_calibration_that_failed_decides_nothing() -> None:
    broken = noise_floor([Score(4.0, 10.0, 1)] * 9, "bfloat16")
    same = generation([1, 2])
    verdict = verdict_on(same, same, floor=broken)
    assert (verdict.outcome, verdict.passes) == (Outcome.UNDECIDABLE, False)


def test_the_worst_outcome_of_all_rounds_is_the_verdict() -> None:
    good, bad = generation([1, 2, 3]), generation([1, 9, 3])
    workload = Workload("w", (request_for([1, 2, 3]), request_for([1, 2, 3])), 2)
    runs = {0: Run((good, good), None, 0.0), 1: Run((good, bad), None, 0.0)}
    verdict = judge(workload, calibration_of([good], [good]), runs, gaps(0.0, 3.0, 0.0))
    assert (verdict.outcome, verdict.counts) == (Outcome.DIVERGENT, {"divergent": 1, "identical": 3})
    assert (verdict.findings[0].round, verdict.findings[0].request) == (1, 1)


OUTPUTS = st.lists(st.lists(st.integers(3, 99), min_size=5, max_size=5), min_size=1, max_size=6)


def _judge(outputs: Sequence[Sequence[int]], seen: Sequence[Sequence[int]]) -> Verdict:
    workload = Workload("w", tuple(request_for(row) for row in outputs), 2)
    calibration = calibration_of(*([generation(row)] for row in outputs))
    return judge(
        workload, calibration, {0: Run(tuple(map(generation, seen)), None, 0.0)}, gaps(0.1, 0.1, 0.1, 0.1, 0.1)
    )


@given(OUTPUTS)
def test_any_output_is_identical_to_itself(outputs: list[list[int]]) -> None:
    assert _judge(outputs, outputs).outcome is Outcome.IDENTICAL


@given(OUTPUTS, st.data())
def test_any_single_changed_token_is_never_identical(outputs: list[list[int]], data: st.DataObject) -> None:
    request, position = data.draw(st.integers(0, len(outputs) - 1)), data.draw(st.integers(0, 4))
    changed = [list(row) for row in outputs]
    changed[request][position] += data.draw(st.integers(1, 50))
    verdict = _judge(outputs, changed)
    assert verdict.outcome is not Outcome.IDENTICAL
    assert verdict.findings[0].position == position


@given(OUTPUTS, st.randoms())
def test_the_verdict_does_not_depend_on_the_order_of_requests(outputs: list[list[int]], random) -> None:  # type: ignore[no-untyped-def]
    changed = [[row[0] + 1, *row[1:]] if index % 2 else row for index, row in enumerate(outputs)]
    order = list(range(len(outputs)))
    random.shuffle(order)
    one, other = _judge(outputs, changed), _judge([outputs[at] for at in order], [changed[at] for at in order])
    assert (one.outcome, one.counts, one.max_gap) == (other.outcome, other.counts, other.max_gap)
