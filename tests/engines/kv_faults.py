"""Faults of the KV cache and of positions for Transformers, in a worker: this text is put after the mutations'.

`plant` undoes the fault before and puts one in each place that is named. A place says: `position`, of the entry or from
which on; `length`, the number of tokens that the cache holds when a fault comes over an entry, once in each request;
`layer` and `head`, None for all of them; `request`, its row of a batch, None for all, whose neighbour is the next row;
`size`, in steps of bfloat16; `rejection`, which one of each answer, from 1, None for all. `drafter`: the entry is the
drafter's, which has fewer layers; without it, and of all other faults, the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.engines.mutations import PATCHES

BLOCK = 16
Place = dict[str, Any]
LEFT: dict[tuple[int, str], Any] = {}
LAYERS = {"target": 0}


class Entries(NamedTuple):
    """Keys or values of the heads of a place: of its requests and of the next one's; what is written stays there."""

    mine: Any
    others: Any
    place: Place
    part: tuple[int, str]  # the layer, and "keys" or "values"


def plant(backend: Any, fault: str | None, *places: Place) -> None:
    """Let the engine have this fault in these places, or none."""
    PATCHES.undo()
    LEFT.clear()
    LAYERS["target"] = backend._target.config.num_hidden_layers
    if fault in ENTRY_FAULTS:
        in_entries(ENTRY_FAULTS[fault], places)
    elif fault is not None:
        OTHER_FAULTS[fault](places)


def in_entries(change: Callable[[Entries], None], places: tuple[Place, ...]) -> None:
    """Change keys and values before the first tokens beyond `length` attend to them."""
    from transformers.cache_utils import Cache

    update = Cache.update

    def faulty(cache: Any, keys: Any, values: Any, number: int, *others: Any, **named: Any) -> Any:
        update(cache, keys, values, number, *others, **named)
        layer = cache.layers[number]
        for at, place in enumerate(places):
            chosen = is_targets(cache) != place.get("drafter", False) and place["layer"] in (None, number)
            if chosen and comes_due(layer, at, place["length"] + keys.shape[-2]):
                change(entries_of(place, (number, "keys"), layer.keys))
                change(entries_of(place, (number, "values"), layer.values))
        return layer.keys, layer.values

    PATCHES.put(Cache, "update", faulty)


def is_targets(cache: Any) -> bool:
    """Whether the cache is the target's."""
    return len(cache.layers) == LAYERS["target"]


def comes_due(layer: Any, number: int, length: int) -> bool:
    """Whether the layer is as long for the first time as a fault of this number waits for."""
    done = layer.__dict__.setdefault("done", set())
    if number in done or layer.keys.shape[-2] < length:
        return False
    done.add(number)
    return True


def entries_of(place: Place, part: tuple[int, str], entries: Any) -> Entries:
    """What a fault in this place changes, and what it may put there."""
    head, request = place["head"], place["request"]
    entries = entries if head is None else entries[:, head : head + 1]
    if request is None:
        return Entries(entries, entries, place, part)
    other = (request + 1) % len(entries)
    return Entries(entries[request : request + 1], entries[other : other + 1], place, part)


def stale(entries: Entries) -> None:
    """The slot still has what the request before had written there; the first request's is its own."""
    position = entries.place["position"]
    own = entries.mine[:, :, position].clone()
    entries.mine[:, :, position] = LEFT.get(entries.part, own)
    LEFT[entries.part] = own


def of_another_request(entries: Entries) -> None:
    """The slot has what the next request of the batch has written there in its own."""
    position = entries.place["position"]
    entries.mine[:, :, position] = entries.others[:, :, position]


def swapped(entries: Entries) -> None:
    """The entry and the next request's stand in each other's slot."""
    position = entries.place["position"]
    own = entries.mine[:, :, position].clone()
    entries.mine[:, :, position] = entries.others[:, :, position]
    entries.others[:, :, position] = own


def block_of_another_request(entries: Entries) -> None:
    """All entries of the position's block are the next request's."""
    first = entries.place["position"] // BLOCK * BLOCK
    block = slice(first, min(first + BLOCK, entries.place["length"]))
    entries.mine[:, :, block] = entries.others[:, :, block]


def zeroed(entries: Entries) -> None:
    """The entry is zero."""
    entries.mine[:, :, entries.place["position"]] = 0


def of_another_position(entries: Entries) -> None:
    """The entry is a copy of its neighbour's."""
    position = entries.place["position"]
    entries.mine[:, :, position] = entries.mine[:, :, position - 1]


def shifted(entries: Entries) -> None:
    """From the position on entries lie one slot further, and the last is lost."""
    position = entries.place["position"]
    entries.mine[:, :, position + 1 :] = entries.mine[:, :, position:-1].clone()


def dropped(entries: Entries) -> None:
    """The entry is not there: those after it lie one slot lower, and the last slot is empty."""
    position = entries.place["position"]
    entries.mine[:, :, position:-1] = entries.mine[:, :, position + 1 :].clone()
    entries.mine[:, :, -1] = 0


def noisy(entries: Entries) -> None:
    """The entry is off by some steps of bfloat16, up and down in turn."""
    position, share = entries.place["position"], entries.place["size"] * 2**-7
    entries.mine[:, :, position, ::2] *= 1 + share
    entries.mine[:, :, position, 1::2] *= 1 - share


def keys_in_fp8(places: tuple[Place, ...]) -> None:
    """From the first token beyond `length` on keys are held as e4m3 numbers, all that came before too."""
    import torch
    from transformers.cache_utils import Cache

    update = Cache.update

    def rounded(cache: Any, keys: Any, values: Any, number: int, *others: Any, **named: Any) -> Any:
        update(cache, keys, values, number, *others, **named)
        layer = cache.layers[number]
        for place in places if is_targets(cache) else ():
            if place["layer"] in (None, number) and layer.keys.shape[-2] > place["length"]:
                mine = entries_of(place, (number, "keys"), layer.keys).mine
                mine[:] = mine.to(torch.float8_e4m3fn).to(mine.dtype)
        return layer.keys, layer.values

    PATCHES.put(Cache, "update", rounded)


def wrong_positions(places: tuple[Place, ...]) -> None:
    """Positions are one too large from a token on."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    forward = LlamaRotaryEmbedding.forward

    def moved(rotary: Any, x: Any, position_ids: Any) -> Any:
        late = torch.zeros(len(x), position_ids.shape[-1], dtype=position_ids.dtype, device=position_ids.device)
        for place in places if rotary.config.num_hidden_layers == LAYERS["target"] else ():
            rows = slice(None) if place["request"] is None else place["request"]
            late[rows] = (position_ids >= place["position"])[0].to(late.dtype)
        return forward(rotary, x, position_ids + late)

    PATCHES.put(LlamaRotaryEmbedding, "forward", moved)


def is_chosen(cache: Any, tokens_to_remove: int, places: tuple[Place, ...]) -> bool:
    """Whether the cache is the target's and this rejection one of those that a fault was planted in."""
    if not is_targets(cache) or tokens_to_remove >= 0:
        return False
    cache.rejections = getattr(cache, "rejections", 0) + 1
    return any(place["rejection"] in (None, cache.rejections) for place in places)


def one_rejected_kept(places: tuple[Place, ...]) -> None:
    """The first rejected token's entry stays, and the one that follows in its place is not written."""
    from transformers.cache_utils import Cache

    update, crop = Cache.update, Cache.crop

    def cropped(cache: Any, tokens_to_remove: int) -> None:
        for layer in cache.layers if is_chosen(cache, tokens_to_remove, places) else ():
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


def one_accepted_dropped(places: tuple[Place, ...]) -> None:
    """After a rejection the last accepted token's entry is gone too: its slot is empty."""
    from transformers.cache_utils import Cache

    crop = Cache.crop

    def cropped(cache: Any, tokens_to_remove: int) -> None:
        crop(cache, tokens_to_remove)
        for layer in cache.layers if is_chosen(cache, tokens_to_remove, places) else ():
            layer.keys[:, :, -1] = layer.values[:, :, -1] = 0

    PATCHES.put(Cache, "crop", cropped)


ENTRY_FAULTS = {
    "stale": stale,
    "of another request": of_another_request,
    "swapped": swapped,
    "block of another request": block_of_another_request,
    "zeroed": zeroed,
    "of another position": of_another_position,
    "shifted by a slot": shifted,
    "dropped": dropped,
    "noisy": noisy,
}
OTHER_FAULTS = {
    "keys in fp8": keys_in_fp8,
    "positions off by one": wrong_positions,
    "rollback one too few": one_rejected_kept,
    "rollback one too many": one_accepted_dropped,
}
