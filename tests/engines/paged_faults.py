"""Faults of the paged KV cache for vLLM on a CPU, in a worker: this text is put after the mutations'.

`plant` undoes the fault before. Entries are written by the engine's own kernel, which packs keys in an order of its
own. `where` says: `layer`, None for all; `position`, of the entry, in the first block and beyond the second one's rows;
`length`, from how many tokens on a foreign block is read; `drafter`, whether an entry is the drafter's, whose layers
have another name. All other faults are the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.engines.mutations import PATCHES

BLOCK = 32
PROMPT_ROWS = 33  # as many as no step of decoding has
NOWHERE = -1  # the slot of what is not written
Where = dict[str, Any]


def plant(_: Any, fault: str | None, where: Where) -> None:
    """Let the engine have this fault, or none."""
    PATCHES.undo()
    if fault in ENTRY_FAULTS:
        in_an_entry(ENTRY_FAULTS[fault], where)
    elif fault is not None:
        OTHER_FAULTS[fault](where)


def attention() -> Any:
    """What writes the cache and reads it."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    return CPUAttentionBackendImpl


def is_targets(layer: Any, number: int | None = None) -> bool:
    """Whether the layer is the target's, and of this number if one is given."""
    name: str = layer.layer_name
    return name.startswith("model.layers." if number is None else f"model.layers.{number}.")


def in_an_entry(change: Callable[[Any], Any], where: Where) -> None:
    """Write an entry of every request once more, changed, in the first step after the prompts' own."""
    write = attention().do_kv_cache_update
    written: dict[str, tuple[Any, Any, Any]] = {}

    def faulty(attends: Any, layer: Any, *given: Any) -> None:
        write(attends, layer, *given)
        keys, values, cache, slots = given
        if is_targets(layer, where["layer"]) == where["drafter"]:
            return
        if len(slots) >= PROMPT_ROWS:
            rows = (slots % BLOCK == where["position"]).nonzero().flatten()
            written[layer.layer_name] = keys[rows].clone(), values[rows].clone(), slots[rows].clone()
        elif layer.layer_name in written:
            keys, values, slots = written.pop(layer.layer_name)
            write(attends, layer, change(keys), change(values), cache, slots)

    PATCHES.put(attention(), "do_kv_cache_update", faulty)


def stale(entries: Any) -> Any:
    """The slot has what another request had written there."""
    return entries.roll(1, dims=0)


def zeroed(entries: Any) -> Any:
    """The entry is zero."""
    return 0 * entries


def foreign_block(where: Where) -> None:
    """The first two requests read each other's first block, once both are long enough."""
    forward = attention().forward

    def faulty(attends: Any, layer: Any, *given: Any, **named: Any) -> Any:
        *tensors, told = given
        if told is not None and is_targets(layer) and int(told.seq_lens[:2].min()) >= where["length"]:
            table = told.block_table.clone()
            table[:2, 0] = told.block_table[:2, 0].flip(0)
            told = replace(told, block_table=table)
        return forward(attends, layer, *tensors, told, **named)

    PATCHES.put(attention(), "forward", faulty)


def one_rejected_kept(_: Where) -> None:
    """The first rejected token's entry stays, and the one that follows in its place is not written."""
    write = attention().do_kv_cache_update
    written: dict[str, set[int]] = {}

    def faulty(attends: Any, layer: Any, *given: Any) -> None:
        *tensors, slots = given
        now = slots.tolist()
        earlier = set() if len(now) >= PROMPT_ROWS else written.setdefault(layer.layer_name, set())
        written[layer.layer_name] = earlier | set(now)
        if is_targets(layer):
            kept = [slot in earlier and slot - 1 not in now for slot in now]
            slots = slots.masked_fill(slots.new_tensor(kept).bool(), NOWHERE)
        write(attends, layer, *tensors, slots)

    PATCHES.put(attention(), "do_kv_cache_update", faulty)


ENTRY_FAULTS = {"stale": stale, "zeroed": zeroed}
OTHER_FAULTS = {"foreign block": foreign_block, "rollback one too few": one_rejected_kept}
