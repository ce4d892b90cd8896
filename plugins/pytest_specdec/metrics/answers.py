"""What the answers were: loops, and what was decoded past the target's own end.

Both are easy to draft. Such figures are right and say nothing of a user's answers, so their share is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from statistics import mean

from pytest_specdec.generation import Generation, Run, count_steps, steps_of
from pytest_specdec.metrics.rounds import NO_STEPS, SEVERAL_STEPS
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import AnswersPart
from pytest_specdec.workloads.workload import Request

RUN_LENGTH = 8
MANY = 0.5
SOME = 0.1
TOO_SHORT = f"no answer has more than {RUN_LENGTH} tokens"
NO_END_KNOWN = "the engine does not tell which token ends an answer"
NONE_PAST = "no step began past the end of its answer"


def answers_part(requests: Sequence[Request], runs: Sequence[Run], ends: Collection[int]) -> AnswersPart:
    """Of the timed rounds, but for requests that failed. `ends`: the target's EOS tokens."""
    pairs = (pair for run in runs for pair in zip(requests, run.generations, strict=True))
    answers = [(request, answer) for request, answer in pairs if answer.failure is None]
    share = _repeated_share([answer for _, answer in answers])
    if not ends:
        return AnswersPart(repeated_share=share, past_end=Figure(None, NO_END_KNOWN))
    forced = (answer for request, answer in answers if request.ignore_eos)  # else the target's end is the answer's
    found = ((answer, [at for at, token in enumerate(answer.token_ids[:-1]) if token in ends]) for answer in forced)
    went_on = [(answer, at[0]) for answer, at in found if at]
    untold = _why_no_steps(runs, [answer for answer, _ in went_on])
    steps = [(len(step), step.start > end) for answer, end in went_on for step in steps_of(answer.chunks)]
    to_end, past = ([tokens for tokens, late in steps if not untold and late == each] for each in (False, True))
    why = untold or NONE_PAST
    return AnswersPart(
        repeated_share=share,
        past_end=Figure(sum(len(answer.token_ids) - end - 1 for answer, end in went_on)),
        tokens_per_step_to_end=Figure(mean(to_end) if to_end else None, why),
        tokens_per_step_past_end=Figure(mean(past) if past else None, why),
    )


def _why_no_steps(runs: Sequence[Run], went_on: Sequence[Generation]) -> str | None:
    """Why the steps of these answers are not known; a step gives one token of the target's own, and accepted ones."""
    if went_on and not count_steps(went_on):
        return NO_STEPS
    accepted = sum(run.speculation.accepted_tokens for run in runs if run.speculation is not None)
    told = [each for run in runs for each in run.generations if each.chunks]
    return (
        SEVERAL_STEPS if went_on and count_steps(told) + accepted < sum(len(each.token_ids) for each in told) else None
    )


def _repeated_share(answers: Sequence[Generation]) -> Figure[float]:
    """Of all runs of RUN_LENGTH tokens, those that stood in the same answer before; of equal ones one is searched."""
    of = repeated = 0
    for tokens, times in Counter(answer.token_ids for answer in answers).items():
        runs = [tokens[at : at + RUN_LENGTH] for at in range(len(tokens) - RUN_LENGTH + 1)]
        of, repeated = of + times * len(runs), repeated + times * (len(runs) - len(set(runs)))
    return Figure(repeated / of if of else None, TOO_SHORT)


def warn_of_answers(part: AnswersPart, tokens: int) -> list[str]:
    """What a reader of the figures must know: that the answers are loops, or go on where a user's would have ended."""
    words, share, past = [], part.repeated_share.value, part.past_end.value
    if share is not None and share >= MANY:
        words.append(f"the answers go in circles, {share:.0%} of their runs of {RUN_LENGTH} tokens stood there before")
    if past and past >= SOME * tokens:
        told = [part.tokens_per_step_to_end.value, part.tokens_per_step_past_end.value]
        steps = f": {told[1]:.3g} tokens a step there, {told[0]:.3g} before" if told[0] and told[1] else ""
        words.append(f"{past / tokens:.0%} of the tokens come after an end that ignore_eos passes over{steps}")
    return words
