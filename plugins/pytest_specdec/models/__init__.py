"""Models whose right answer is known, made on the spot: constructed pairs, and one small real model.

    constructed:tiny                      a target that follows a known next-token map
    constructed:tiny:draft?alpha=0.8      its drafter, which agrees with that map on 80 % of the tokens
    constructed:tiny:eagle                its EAGLE head
    constructed:tiny:eagle3?memory=24     its EAGLE-3 head, of the pair with memory
    constructed:tiny:medusa?alpha=0.9     its heads in Medusa's way; `:dflash`, a drafter of a whole block
    constructed:tiny?memory=24            a target whose next token depends on what stood 1 to 24 tokens back too
    smollm2?layers=4                      SmolLM2-135M-Instruct, cut to its first layers

`resolve` turns such a reference into the folder of a checkpoint, and every other string into itself. Nothing here
imports torch until a checkpoint is really written, and `resolve` leaves that to another process.
"""

from pytest_specdec.errors import ModelError
from pytest_specdec.models.cache import resolve, where
from pytest_specdec.models.reference import parse
from pytest_specdec.models.truth import expected_assistance, expected_continuation, expected_speculation

__all__ = [
    "ModelError",
    "expected_assistance",
    "expected_continuation",
    "expected_speculation",
    "parse",
    "resolve",
    "where",
]
