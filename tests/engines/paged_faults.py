"""Faults of the paged KV cache for vLLM on a CPU, in a worker: this text is put after the mutations'.

`plant` undoes the fault before and puts one in each place that is named. Entries are written by the engine's own
kernel, which packs keys in an order of its own. A place says: `layer`, None for all. Of a prompt's entry, in every
request: `position`, in the first block and beyond the second one's rows. Of an entry of decoding: `step`, from 1;
`request`, its row of the step, and `other`, another's; `head`, None for all; `size`, in steps of bfloat16. Of foreign
blocks: `length`, from how many tokens on; `requests`, how many. `drafter`: whether a
prompt's entry is the drafter's, whose layers have another name; all other faults are the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tests.engines.mutations import PATCHES

BLOCK = 32
PROMPT_ROWS = 33  # as many as no step of decoding has
NOWHERE = -1  # the slot of what is not written
Place = dict[str, Any]


class Step(NamedTuple):
    """Keys or values that a step of decoding writes, as they ought to be, and as they are written: [request, head]."""

    sound: Any
    written: Any


def plant(_: Any, fault: str | None, *places: Place) -> None:
    """Let the engine have this fault in these places, or none."""
    PATCHES.undo()
    if fault in PROMPT_FAULTS:
        in_prompts(PROMPT_FAULTS[fault], *places)
    elif fault in STEP_FAULTS:
        in_steps(STEP_FAULTS[fault], places)
    elif fault is not None:
        OTHER_FAULTS[fault](*places)


def attention() -> Any:
    """What writes the cache and reads it."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    return CPUAttentionBackendImpl


def is_targets(layer: Any, number: int | None = None) -> bool:
    """Whether the layer is the target's, and of this number if one is given."""
    name: str = layer.layer_name
    return name.startswith("model.layers." if number is None else f"model.layers.{number}.")


def in_prompts(change: Callable[[Any], Any], where: Place) -> None:
    """Write an entry of every request once more, changed, in the first step after the prompts' own."""
    write = attention().do_kv_cache_update
    written: dict[str, tuple[Any, Any, Any]] = {}

    def faulty(attends: Any, layer: Any, *given: Any) -> None:
        write(attends, layer, *given)
        keys, values, cache, slots = given
        if is_targets(layer, where["layer"]) == where.get("drafter", False):
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


def in_steps(change: Callable[[Step, Place], None], places: tuple[Place, ...]) -> None:
    """Write an entry of decoding otherwise than it ought to be."""
    write = attention().do_kv_cache_update
    steps: dict[str, int] = {}

    def faulty(attends: Any, layer: Any, *given: Any) -> None:
        keys, values, cache, slots = given
        steps[layer.layer_name] = 0 if len(slots) >= PROMPT_ROWS else steps.get(layer.layer_name, 0) + 1
        due = [each for each in places if is_targets(layer, each["layer"]) and each["step"] == steps[layer.layer_name]]
        changed = Step(keys, keys.clone()), Step(values, values.clone())
        for place in due:
            for entries in changed:
                change(entries, place)
        write(attends, layer, *(each.written for each in changed), cache, slots)

    PATCHES.put(attention(), "do_kv_cache_update", faulty)


def row(place: Place, name: str = "request") -> tuple[Any, Any]:
    """The place's heads of its request, or of the other one."""
    head = place["head"]
    return place[name], slice(None) if head is None else head


def of_another_request(step: Step, place: Place) -> None:
    """The slot has what the other request ought to have in its own."""
    step.written[row(place)] = step.sound[row(place, "other")]


def swapped(step: Step, place: Place) -> None:
    """The entry and the other request's stand in each other's slot."""
    step.written[row(place)] = step.sound[row(place, "other")]
    step.written[row(place, "other")] = step.sound[row(place)]


def zero(step: Step, place: Place) -> None:
    """The entry is zero."""
    step.written[row(place)] = 0


def noisy(step: Step, place: Place) -> None:
    """The entry is off by some steps of bfloat16, up and down in turn."""
    share = place["size"] * 2**-7
    step.written[row(place)][..., ::2] *= 1 + share
    step.written[row(place)][..., 1::2] *= 1 - share


def keys_in_fp8(where: Place) -> None:
    """Keys are held as e4m3 numbers, all of them."""
    import torch

    write = attention().do_kv_cache_update

    def rounded(attends: Any, layer: Any, keys: Any, *given: Any) -> None:
        if is_targets(layer, where["layer"]):
            keys = keys.to(torch.float8_e4m3fn).to(keys.dtype)
        write(attends, layer, keys, *given)

    PATCHES.put(attention(), "do_kv_cache_update", rounded)


def foreign_block(where: Place) -> None:
    """The first requests read the first blocks of one another, once all are long enough."""
    forward, count = attention().forward, where["requests"]

    def faulty(attends: Any, layer: Any, *given: Any, **named: Any) -> Any:
        *tensors, told = given
        if told is not None and is_targets(layer) and int(told.seq_lens[:count].min()) >= where["length"]:
            table = told.block_table.clone()
            table[:count, 0] = told.block_table[:count, 0].flip(0)
            told = replace(told, block_table=table)
        return forward(attends, layer, *tensors, told, **named)

    PATCHES.put(attention(), "forward", faulty)


def one_rejected_kept(_: Place) -> None:
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


PROMPT_FAULTS = {"stale": stale, "zeroed": zeroed}
STEP_FAULTS = {"of another request": of_another_request, "swapped": swapped, "zero": zero, "noisy": noisy}
OTHER_FAULTS = {
    "keys in fp8": keys_in_fp8,
    "foreign block": foreign_block,
    "rollback one too few": one_rejected_kept,
}
