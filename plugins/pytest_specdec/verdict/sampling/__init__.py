"""The verdict for sampling: at a temperature above 0, is the output distributed as the target's own samples are?

Speculative sampling promises more than similar text: every token has exactly the target's distribution, given the
tokens before it. One output proves nothing then, but many do. The same prompt is sampled again and again, each time as
a request of its own with a seed of its own, and at each position that a step can reach, the tokens that
followed the most frequent prefixes are compared with the target's by a G-test. The verdict says "consistent" only when
a difference of a stated size would have been found with a stated probability.

    plan = SamplingPlan.for_gamma(4)
    target = KnownTarget(rescore(enter_target, request, vocabulary))      # or SampledTarget(Drawing(…))
    draw = Drawing(enter_engine, request, plan.tokens, concurrency)
    verdict = judge_sampling(draw, target, plan)

`plan` states what is to be found, `tally` counts, `tables` tests what followed a prefix, `power` says what a test can
see, `position` joins the prefixes, `target` is what is compared with, `drawing` asks engines, and `judgement` decides.
"""

from pytest_specdec.verdict.sampling.judgement import PositionFinding, SamplingOutcome, SamplingVerdict, judge_sampling
from pytest_specdec.verdict.sampling.plan import SamplingPlan
from pytest_specdec.verdict.sampling.statistics import Cell, Comparison
from pytest_specdec.verdict.sampling.target import (
    EXACT_VOCABULARY,
    Drawing,
    KnownTarget,
    SampledTarget,
    Target,
    is_sampled,
    knows_exactly,
    probabilities,
    rescore,
)

__all__ = [
    "EXACT_VOCABULARY",
    "Cell",
    "Comparison",
    "Drawing",
    "KnownTarget",
    "PositionFinding",
    "SampledTarget",
    "SamplingOutcome",
    "SamplingPlan",
    "SamplingVerdict",
    "Target",
    "is_sampled",
    "judge_sampling",
    "knows_exactly",
    "probabilities",
    "rescore",
]
