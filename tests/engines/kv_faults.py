"""Faults of the KV cache and of positions for Transformers, in a worker: this text is put after the mutations'.

`plant` undoes the fault before. `where` says: `position`, of the entry or from which on; `length`, the number of tokens
that the cache holds when a fault comes over an entry, once in each request; `layer` and `head`, None for all of them;
`drafter`, whether an entry is the drafter's, which has one layer. All other faults are the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engines.mutations import PATCHES

Where = dict[str, Any]
Part = tuple[int, str]  # a layer, and its keys or its values
LEFT: dict[Part, Any] = {}


def plant(_: Any, fault: str | None, where: Where) -> None:
    """Let the engine have this fault, or none."""
    PATCHES.undo()
    LEFT.clear()
    if fault in ENTRY_FAULTS:
        in_an_entry(ENTRY_FAULTS[fault], where)
    elif fault is not None:
        OTHER_FAULTS[fault](where)


def in_an_entry(change: Callable[[Any, int, Part], None], where: Where) -> None:
    """Change keys and values before the first tokens beyond `length` attend to them."""
    from transformers.cache_utils import Cache

    update = Cache.update

    def faulty(cache: Any, keys: Any, values: Any, number: int, *others: Any, **named: Any) -> Any:
        update(cache, keys, values, number, *others, **named)
        layer = cache.layers[number]
        chosen = is_targets(cache) != where["drafter"] and where["layer"] in (None, number)
        if chosen and layer.keys.shape[-2] - keys.shape[-2] >= where["length"] and not hasattr(layer, "faulty"):
            layer.faulty = True
            for name in ("keys", "values"):
                change(of_heads(getattr(layer, name), where["head"]), where["position"], (number, name))
        return layer.keys, layer.values

    PATCHES.put(Cache, "update", faulty)


def is_targets(cache: Any) -> bool:
    """Whether the cache is the target's."""
    return len(cache.layers) > 1


def of_heads(entries: Any, head: int | None) -> Any:
    """The entries of one KV head, or of all; what is written there is written into the cache."""
    return entries if head is None else entries[:, head : head + 1]


def stale(entries: Any, position: int, part: Part) -> None:
    """The slot still has what the request before had written there; the first request's is its own."""
    own = entries[:, :, position].clone()
    entries[:, :, position] = LEFT.get(part, own)
    LEFT[part] = own


def zeroed(entries: Any, position: int, _: Part) -> None:
    """The entry is zero."""
    entries[:, :, position] = 0


def of_another_position(entries: Any, position: int, _: Part) -> None:
    """The entry is a copy of its neighbour's."""
    entries[:, :, position] = entries[:, :, position - 1]


def shifted(entries: Any, position: int, _: Part) -> None:
    """From the position on entries lie one slot further, and the last is lost."""
    entries[:, :, position + 1 :] = entries[:, :, position:-1].clone()


def noisy(entries: Any, position: int, _: Part) -> None:
    """The entry is off by a step of bfloat16, up and down in turn."""
    entries[:, :, position, ::2] *= 1 + 2**-7
    entries[:, :, position, 1::2] *= 1 - 2**-7


def wrong_positions(where: Where) -> None:
    """Positions are one too large from a token on."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    forward = LlamaRotaryEmbedding.forward

    def moved(rotary: Any, x: Any, position_ids: Any) -> Any:
        is_target = rotary.config.num_hidden_layers > 1
        return forward(rotary, x, position_ids + is_target * (position_ids >= where["position"]))

    PATCHES.put(LlamaRotaryEmbedding, "forward", moved)


def one_rejected_kept(_: Where) -> None:
    """The first rejected token's entry stays, and the one that follows in its place is not written."""
    from transformers.cache_utils import Cache

    update, crop = Cache.update, Cache.crop

    def cropped(cache: Any, tokens_to_remove: int) -> None:
        for layer in cache.layers if is_targets(cache) and tokens_to_remove < 0 else ():
            layer.kept = layer.keys[:, :, tokens_to_remove].clone(), layer.values[:, :, tokens_to_remove].clone()
        crop(cache, tokens_to_remove)

    def unwritten(cache: Any, keys: Any, values: Any, number: int, *others: Any, **named: Any) -> Any:
        update(cache, keys, values, number, *others, **named)
        layer = cache.layers[number]
        first = layer.keys.shape[-2] - keys.shape[-2]
        if hasattr(layer, "kept"):
            layer.keys[:, :, first], layer.values[:, :, first] = vars(layer).pop("kept")
        return layer.keys, layer.values

    PATCHES.put(Cache, "crop", cropped)
    PATCHES.put(Cache, "update", unwritten)


def one_accepted_dropped(_: Where) -> None:
    """After a rejection the last accepted token's entry is gone too: its slot is empty."""
    from transformers.cache_utils import Cache

    crop = Cache.crop

    def cropped(cache: Any, tokens_to_remove: int) -> None:
        crop(cache, tokens_to_remove)
        for layer in cache.layers if is_targets(cache) and tokens_to_remove < 0 else ():
            layer.keys[:, :, -1] = layer.values[:, :, -1] = 0

    PATCHES.put(Cache, "crop", cropped)


ENTRY_FAULTS = {
    "stale": stale,
    "zeroed": zeroed,
    "of another position": of_another_position,
    "shifted by a slot": shifted,
    "noisy": noisy,
}
OTHER_FAULTS = {
    "positions off by one": wrong_positions,
    "rollback one too few": one_rejected_kept,
    "rollback one too many": one_accepted_dropped,
}
