"""What the fake target prefers next, and how that gives a token.

By a map of the last token, which can be followed by hand; or by a hash of the whole prefix, so that a token too few or
too many gives other logits, with near-ties that rounding decides and an end of the answer, as real models have. A
target by the name of a constructed model is that model.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from random import Random
from typing import Any, Protocol

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.models import ModelError, parse
from pytest_specdec.models.recipe import Constructed, ConstructedRecipe
from pytest_specdec.models.truth import Next, follower

EOS = 2
FIRST_PLAIN_ID = 3
MODELS = ("map", "context")
TOP = 12.0
ULP = 0.0625  # of bfloat16 from 8 to 16, where TOP lies
NEAR, CLOSE = 1, 8
FAR = range(17, 48)
LOW = 4.0
REST = tuple(LOW + ULP * step for step in range(64))
OF_BYTE = tuple(REST[byte >> 2] for byte in range(256))
MAP_TOP, MAP_GAP = 10.0, 8.0
MODELS_KEPT = 8
MOST_KEPT = 1 << 14  # prefixes of a workload of ten thousand tokens

Logits = tuple[float, ...]


class LanguageModel(Protocol):
    """A target and, by `agrees`, its drafter."""

    vocabulary: int
    eos_token_ids: tuple[int, ...]

    def logits(self, prefix: tuple[int, ...], shape: str | None = None) -> Logits:
        """One logit per id. `shape` names the batch that computes it; None computes without rounding noise."""

    def agrees(self, prefix: tuple[int, ...], alpha: float) -> bool:
        """Whether a drafter that is right on a share `alpha` of prefixes is right on this one."""


def language_model(spec: EngineSpec, options: Mapping[str, Any]) -> LanguageModel:
    """The constructed pair where the target is one, else what the options ask for. Raises EngineError."""
    if (target := _parse_constructed(spec.target)) is not None:
        return ConstructedModel(target, _parse_constructed(spec.draft or spec.target) or target)
    vocabulary = int(options["vocabulary"])
    if options["model"] == "map":
        return MapModel(vocabulary)
    if options["model"] == "context":
        rates = (float(options[name]) for name in ("near_tie_rate", "close_rate", "flip_rate", "eos_rate"))
        return _context_model(int(options["binades"]), vocabulary, *rates)
    raise EngineError(f"the fake engine has no model {options['model']!r}; it has: {', '.join(MODELS)}")


@lru_cache(maxsize=MODELS_KEPT)
def _context_model(binades: int, vocabulary: int, *rates: float) -> ContextModel:
    """The same for all engines that ask for it, so that what one has drawn the others know."""
    model = ContextModel(vocabulary, *rates)
    model.binades = binades
    return model


def _only(choice: int, vocabulary: int) -> Logits:
    return tuple(MAP_TOP - MAP_GAP * (token != choice) for token in range(vocabulary))


class MapModel:
    """The choice is a fixed map of the last token, 8 logits above everything else; no end, no noise."""

    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._following = cache(self._draw)

    def logits(self, prefix: tuple[int, ...], shape: str | None = None) -> Logits:
        """10 for the map's choice, 2 for every other id."""
        return self._following(prefix[-1])

    def _draw(self, last: int) -> Logits:
        return _only(FIRST_PLAIN_ID + (last * 7 + 11) % (self.vocabulary - FIRST_PLAIN_ID), self.vocabulary)

    def agrees(self, prefix: tuple[int, ...], alpha: float) -> bool:
        """By the last token alone."""
        return (prefix[-1] * 37) % 100 < 100 * alpha


def _parse_constructed(reference: str) -> Constructed | None:
    try:
        recipe = parse(reference)
    except ModelError as error:
        raise EngineError(str(error)) from error
    return recipe if isinstance(recipe, ConstructedRecipe) else None


class ConstructedModel:
    """A constructed pair: what the target emits is known, and its drafter is right where it would emit the same."""

    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, target: Constructed, draft: Constructed) -> None:
        self.vocabulary = target.vocab
        self._target, self._draft = follower(target), follower(draft)
        reaches = [model.memory.reach for model in (target, draft) if model.memory is not None]
        self._before = (0,) * max(reaches, default=0)  # so that a short prompt is read too

    def logits(self, prefix: tuple[int, ...], shape: str | None = None) -> Logits:
        """10 for the known token, 2 for every other id."""
        return _only(self._after(self._target, prefix), self.vocabulary)

    def agrees(self, prefix: tuple[int, ...], alpha: float) -> bool:
        """By the two models themselves; `alpha` is the reference's own."""
        return self._after(self._target, prefix) == self._after(self._draft, prefix)

    def _after(self, emits: Next, prefix: tuple[int, ...]) -> int:
        ids = (*self._before, *prefix)
        return emits(ids, len(ids))


class ContextModel:
    """Logits drawn by a hash of the whole prefix, all of them multiples of one bfloat16 ULP.

    The runner-up lies one ULP below the argmax on a share `near_tie_rate` of prefixes, eight ULPs on a share
    `close_rate`, and 17 or more elsewhere. Rounding, which differs with the shape of a batch, swaps the two of a
    near-tie on a share `flip_rate` of them. The argmax is EOS on a share `eos_rate` of prefixes. All logits of a prefix
    are doubled up to `binades` - 1 times, so that top logits, and their ULPs with them, are of so many magnitudes.
    """

    eos_token_ids: tuple[int, ...] = (EOS,)

    def __init__(
        self, vocabulary: int, near_tie_rate: float, close_rate: float, flip_rate: float, eos_rate: float
    ) -> None:
        self.vocabulary = vocabulary
        self._rates = near_tie_rate, close_rate
        self._flip_rate = flip_rate
        self._eos_rate = eos_rate
        self.binades = 1
        self._exact = lru_cache(maxsize=MOST_KEPT)(self._draw)
        self._drafter = lru_cache(maxsize=MOST_KEPT)(partial(chance, "drafter"))

    def logits(self, prefix: tuple[int, ...], shape: str | None = None) -> Logits:
        """Exact without a shape; with one, a near-tie may be decided the other way."""
        exact, near_tie = self._exact(prefix)
        if shape is None or not near_tie or chance(f"shape {shape}", prefix) >= self._flip_rate:
            return exact
        return swap_two_highest(exact)

    def agrees(self, prefix: tuple[int, ...], alpha: float) -> bool:
        """By the whole prefix."""
        return self._drafter(prefix) < alpha

    def _draw(self, prefix: tuple[int, ...]) -> tuple[Logits, bool]:
        draw = Random(hash_tokens("target", prefix))
        logits = self._draw_rest(draw)
        logits[:FIRST_PLAIN_ID] = [LOW] * FIRST_PLAIN_ID
        first, second = draw.sample(range(FIRST_PLAIN_ID, self.vocabulary), 2)
        logits[EOS if draw.random() < self._eos_rate else first] = TOP
        gap = self._gap(draw)
        logits[second] = TOP - ULP * gap
        if self.binades > 1:
            scale = 2.0 ** int(chance("binade", prefix) * self.binades)
            logits = [scale * logit for logit in logits]
        return tuple(logits), gap == NEAR

    def _draw_rest(self, draw: Random) -> list[float]:
        """What `draw.choices(REST)` gives, which looks at the highest bits of every second word alone."""
        words = draw.getrandbits(64 * self.vocabulary).to_bytes(8 * self.vocabulary, "little")
        return [OF_BYTE[byte] for byte in words[3::8]]

    def _gap(self, draw: Random) -> int:
        """ULPs between the argmax and the runner-up."""
        near, close = self._rates
        kind = draw.random()
        return NEAR if kind < near else CLOSE if kind < near + close else draw.choice(FAR)


def two_highest(logits: Sequence[float]) -> tuple[int, int]:
    """The argmax and the runner-up; of equals, the lower id first."""
    first = argmax(logits)
    second = argmax([*logits[:first], *logits[first + 1 :]])
    return first, second + (second >= first)


def argmax(logits: Sequence[float]) -> int:
    """The id of the highest logit; of equals, the lowest."""
    return logits.index(max(logits))


def swap_two_highest(logits: Sequence[float]) -> Logits:
    """The runner-up wins, and nothing else changes."""
    first, second = two_highest(logits)
    swapped = list(logits)
    swapped[first], swapped[second] = logits[second], logits[first]
    return tuple(swapped)


def hash_tokens(purpose: str, prefix: Sequence[int]) -> int:
    """64 bits of the purpose and every token of the prefix."""
    digest = hashlib.blake2b(array("q", prefix).tobytes(), digest_size=8, person=purpose.encode()[:16])
    return int.from_bytes(digest.digest(), "big")


def chance(purpose: str, prefix: Sequence[int]) -> float:
    """A number from 0 to 1 that is fixed by purpose and prefix."""
    return hash_tokens(purpose, prefix) / 2**64


def discourage(logits: list[float], seen: Iterable[int], factor: float) -> list[float]:
    """Each token of prompt and answer so far, by vLLM's `repetition_penalty`."""
    for token in set(seen):
        logits[token] *= 1 / factor if logits[token] > 0 else factor
    return logits


def mask_tokens(logits: list[float], ends: Iterable[int]) -> list[float]:
    """No end may be chosen."""
    for token in ends:
        logits[token] = -math.inf
    return logits


def probabilities(logits: Sequence[float], temperature: float) -> list[float]:
    """Softmax at a temperature; at 0, all on the argmax."""
    if temperature == 0:
        weights = [0.0] * len(logits)
        weights[argmax(logits)] = 1.0
        return weights
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def draw(weights: Sequence[float], random: Random) -> int:
    """An id, as often as its weight says."""
    return random.choices(range(len(weights)), weights)[0]
