"""What lies between logits and a token: bias, penalties, withheld ends; then the argmax, or a draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from pytest_specdec.engines.fake.models import argmax


def biased(logits: Sequence[float], bias: Mapping[int, float]) -> list[float]:
    """Logits with the bias of some ids added."""
    return [logit + bias.get(token, 0.0) for token, logit in enumerate(logits)] if bias else list(logits)


def penalised(logits: list[float], history: Iterable[int], frequency: float, presence: float) -> list[float]:
    """Each token of the history lowered by `frequency` for each time it was given, and by `presence` once."""
    for token, times in Counter(history).items() if frequency or presence else ():
        logits[token] -= frequency * times + presence
    return logits


def withheld(logits: list[float], ends: Iterable[int]) -> list[float]:
    """No end may be chosen."""
    for token in ends:
        logits[token] = -math.inf
    return logits


def probabilities(logits: Sequence[float], temperature: float) -> list[float]:
    """Softmax at a temperature; at 0, all on the argmax."""
    top = argmax(logits)
    if temperature == 0:
        return [float(token == top) for token in range(len(logits))]
    weights = [math.exp((logit - logits[top]) / temperature) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def drawn(weights: Sequence[float], random: Random) -> int:
    """An id, as often as its weight says."""
    return random.choices(range(len(weights)), weights)[0]


def residual(target: Sequence[float], draft: Sequence[float]) -> list[float]:
    """What is left of the target's distribution where the drafter's does not cover it; not normalised."""
    return [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)]
