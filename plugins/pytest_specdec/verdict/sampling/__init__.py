"""The verdict for sampling: at a temperature above 0, is the output distributed as the target's own samples are?

Speculative sampling promises more than similar text: every token has exactly the target's distribution, given the
tokens before it. Two things test that. Every token that was measured is rated by the target, and all of them together
are held against what the target lets expect (`rated`, `evidence`). And one prompt is sampled again and again, each time
with a seed of its own: at each position that a step can reach, the tokens that followed the most frequent prefixes are
compared with the target's by a G-test.

    plan = SamplingPlan.for_gamma(4)
    target = KnownTarget(rescore(enter_target, request, vocabulary))      # or SampledTarget(Drawing(…))
    draw = Drawing(enter_engine, request, plan.tokens, concurrency)
    verdict = judge_sampling(draw, target, plan)

`rated` places measured tokens in the target's distribution, `evidence` judges them and says what it would have found;
`statistics` states what the G-test is to find, counts and tests, `target` is what is compared with and asks the
engines, and `judgement` decides.
"""
