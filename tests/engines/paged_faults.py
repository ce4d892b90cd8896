"""Faults of vLLM's paged KV cache and of positions, in a worker: this text is put after the mutations'.

They come over the cache between two steps of the engine, so that compiled code and CUDA graphs have them too. Where an
entry lies in its block the engine's own kernel shows, whatever the device's layout. Asynchronous scheduling has to be
off. `plant` undoes the fault before and puts one in each place that is named. A place says: `position`, of the entry or
from which on; `length`, how many tokens a request's cache holds when the fault comes over it, once; `layer` and `head`,
None for all; `request`, its row among the running ones, None for all, whose neighbour is the next; `size`, in steps of
bfloat16. `drafter`: the entry is the drafter's; without it, and of all other faults, the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tests.engines.mutations import PATCHES

Place: TypeAlias = dict[str, Any]
After: TypeAlias = Callable[[], None]


def plant(backend: Any, fault: str | None, *places: Place) -> None:
    """Let the engine have this fault in these places, or none."""
    PATCHES.undo()
    if fault is None:
        return
    if fault == "keys in fp8":
        keys_in_fp8()
        return
    import torch

    cache, owner = PagedCache(backend._engine), type(backend._engine)
    step = owner.step

    def faulty(engine: Any) -> Any:
        with torch.inference_mode():
            afterwards = [FAULTS[fault](cache, place) for place in places]
        outputs = step(engine)
        with torch.inference_mode():
            for after in afterwards:
                after()
        return outputs

    PATCHES.put(owner, "step", faulty)


class PagedCache:
    """The blocks of all layers, and which of them the running requests have."""

    def __init__(self, engine: Any) -> None:
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._layers = engine.vllm_config.compilation_config.static_forward_context
        self._groups = self._scheduler.kv_cache_config.kv_cache_groups
        self.model = engine.apply_model(lambda model: model)[0]
        self.ends: dict[str, int] = {}  # of what the step before wrote, by request

    @property
    def running(self) -> list[Any]:
        """The requests, in the order in which they came."""
        return list(self._scheduler.running)

    def layers(self, place: Place) -> list[str]:
        """The names of the place's layers."""
        number, drafters = place["layer"], place.get("drafter", False)
        target = "model.layers." if number is None or drafters else f"model.layers.{number}."
        return [name for name in self._layers if name.startswith(target) != drafters]

    def entry(self, name: str, request: Any, place: Place) -> tuple[Any, Any]:
        """The block that holds the request's entry of the place's position, and where in it the place's heads are."""
        number = next(number for number, group in enumerate(self._groups) if name in group.layer_names)
        size, position = self._groups[number].kv_cache_spec.block_size, place["position"]
        ids = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)[number]
        slot = ids[position // size] * size + position % size
        impl, blocks = self._layers[name].impl, self._layers[name].kv_cache
        slots = blocks[0].numel() // (2 * impl.num_kv_heads * impl.head_size)
        where = ... if place.get("block") else self._of_slot(name, slot % slots, place["head"])
        return blocks[slot // slots], where

    def _of_slot(self, name: str, slot: int, head: int | None) -> Any:
        """Where in a block the engine's kernel writes the key and the value of a slot."""
        import torch

        layer, blocks = self._layers[name], self._layers[name].kv_cache
        written, device = torch.zeros_like(blocks[:1]), blocks.device
        ones = torch.zeros(1, layer.impl.num_kv_heads, layer.impl.head_size, dtype=blocks.dtype, device=device)
        ones[:, slice(None) if head is None else head] = 1
        layer.impl.do_kv_cache_update(layer, ones, ones, written, torch.tensor([slot], device=device))
        return written[0] != 0


def over_entries(change: Callable[[Any, Any, Place], Any]) -> Callable[[PagedCache, Place], After]:
    """A fault that puts something else in the place of an entry, once its request and the next are so long."""

    def before(cache: PagedCache, place: Place) -> After:
        earlier = {each.request_id: each.num_computed_tokens for each in cache.running}

        def after() -> None:
            due = [pair for pair in pairs(cache, place) if shortest(pair, earlier) < place["length"] <= shortest(pair)]
            for name in cache.layers(place):
                entries = [[cache.entry(name, each, place) for each in pair] for pair in due]
                new = [change(*(block[where].clone() for block, where in pair), place) for pair in entries]
                for ((block, where), _), value in zip(entries, new, strict=True):
                    block[where] = value

        return after

    return before


def pairs(cache: PagedCache, place: Place) -> list[tuple[Any, Any]]:
    """The place's requests, each with its neighbour."""
    running = cache.running
    rows = range(len(running)) if place["request"] is None else [place["request"]]
    return [(running[row], running[(row + 1) % len(running)]) for row in rows if row < len(running)]


def shortest(pair: tuple[Any, Any], earlier: dict[str, int] | None = None) -> int:
    """How many tokens' entries both have, or had earlier."""
    return min(each.num_computed_tokens if earlier is None else earlier.get(each.request_id, 0) for each in pair)


def of_another_request(_: Any, other: Any, __: Place) -> Any:
    """The slot has what the next request has in its own."""
    return other


def zeroed(own: Any, _: Any, __: Place) -> Any:
    """The entry is zero."""
    return 0 * own


def noisy(own: Any, _: Any, place: Place) -> Any:
    """The entry is off by some steps of bfloat16, up and down in turn."""
    share = place["size"] * 2**-7
    own[::2] *= 1 + share
    own[1::2] *= 1 - share
    return own


def block_of_another_request(cache: PagedCache, place: Place) -> After:
    """The block of the position is a copy of the next request's."""
    return over_entries(of_another_request)(cache, {**place, "block": True})


def wrong_positions(cache: PagedCache, place: Place) -> After:
    """Positions are one too large from a token on: in this step rotary embedding turns as for the next position."""
    named = dict(cache.model.named_buffers())
    turns = [turn for name, turn in named.items() if "cos_sin_cache" in name]
    right = [turn.clone() for turn in turns]
    for turn, own in zip(turns, right, strict=True):
        turn[place["position"] : -1] = own[place["position"] + 1 :]

    def after() -> None:
        for turn, own in zip(turns, right, strict=True):
            turn[:] = own

    return after


def one_rejected_kept(cache: PagedCache, place: Place) -> After:
    """The first rejected token's entry is there again after the step that had to write another in its place."""
    kept = []
    for request in cache.running:
        done = request.num_computed_tokens
        if cache.ends.get(request.request_id, 0) > done:
            at = {**place, "position": done}
            entries = [cache.entry(name, request, at) for name in cache.layers(place)]
            kept += [(block, where, block[where].clone()) for block, where in entries]
        cache.ends[request.request_id] = done + 1 + len(request.spec_token_ids)

    def after() -> None:
        for block, where, rejected in kept:
            block[where] = rejected

    return after


def keys_in_fp8() -> None:
    """Keys are held as e4m3 numbers, all of them; on a CPU."""
    import torch
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    write = CPUAttentionBackendImpl.do_kv_cache_update

    def rounded(attends: Any, layer: Any, keys: Any, *given: Any) -> None:
        if layer.layer_name.startswith("model.layers."):
            keys = keys.to(torch.float8_e4m3fn).to(keys.dtype)
        write(attends, layer, keys, *given)

    PATCHES.put(CPUAttentionBackendImpl, "do_kv_cache_update", rounded)


FAULTS: dict[str, Callable[[PagedCache, Place], After]] = {
    "of another request": over_entries(of_another_request),
    "zeroed": over_entries(zeroed),
    "noisy": over_entries(noisy),
    "block of another request": block_of_another_request,
    "positions off by one": wrong_positions,
    "rollback one too few": one_rejected_kept,
}
