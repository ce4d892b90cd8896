"""The verdict for sampling: at a temperature above 0, is the output distributed as the target's own samples are?

Speculative sampling promises more than similar text: every token has exactly the target's distribution, given the
tokens before it. Two things test that. Every token that was measured is rated by the target (`rated`), and all of them
together are held against what the target lets expect (`evidence`). And one prompt is sampled again and again, each time
with a seed of its own (`judgement`): at each position that a step can reach, the tokens that followed the most frequent
prefixes are compared with the target's by a G-test (`statistics`).
"""
