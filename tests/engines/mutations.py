"""Faults for Transformers' own assisted decoding, in a worker: this text is put after the backend's and runs there.

It imports nothing of the package or of its tests. A mutation rewrites one place of Transformers or of the backend, and
refuses where that place is not found, so that none can be without effect unseen. `become` undoes the one before.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

WINDOW = 256
BOS = 1


class Patches:
    """What was replaced, and by what, so that it can be put back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute."""
        self._originals.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def rewrite(self, owner: Any, name: str, old: str, new: str) -> None:
        """Replace a piece of a function's source. Raises ValueError unless it is there, once."""
        function = owner.__dict__[name]
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(old) != 1:
            raise ValueError(f"{name} of this version has {source.count(old)} times {old!r}; adapt the mutation")
        made: dict[str, Any] = {}
        exec(source.replace(old, new), sys.modules[function.__module__].__dict__, made)
        self.put(owner, name, made[name])

    def undo(self) -> None:
        """Put everything back."""
        while self._originals:
            owner, name, value = self._originals.pop()
            setattr(owner, name, value)


PATCHES = Patches()


def become(backend: Any, fault: str | None) -> None:
    """Turn the engine into this mutant, or into a sound one."""
    PATCHES.undo()
    if fault is not None:
        MUTATIONS[fault](backend)


def rewrite_decoding(old: str, new: str) -> None:
    """Change one piece of the loop that verifies drafts."""
    from transformers.generation.utils import GenerationMixin

    PATCHES.rewrite(GenerationMixin, "_assisted_decoding", old, new)


def all_accepted(_: Any) -> None:
    """Every draft is accepted, whatever the target would have chosen."""
    rewrite_decoding(
        "valid_tokens = selected_tokens[:, : n_matches + 1]",
        "valid_tokens = torch.cat((candidate_new_tokens, selected_tokens[:, -1:]), dim=-1)",
    )


def draft_instead_of_target(_: Any) -> None:
    """A rejected draft is emitted instead of the target's token."""
    rewrite_decoding(
        "valid_tokens = selected_tokens[:, : n_matches + 1]",
        "valid_tokens = torch.cat((candidate_new_tokens, selected_tokens[:, -1:]), dim=-1)[:, : n_matches + 1]",
    )


def nothing_accepted(_: Any) -> None:
    """Every draft is rejected, also where it is right: slow, and not wrong."""
    rewrite_decoding(
        "valid_tokens = selected_tokens[:, : n_matches + 1]",
        "n_matches = 0 * n_matches; valid_tokens = selected_tokens[:, :1]",
    )


def eos_passed_over(_: Any) -> None:
    """An EOS inside a block is not seen: only the block's last token is looked at."""
    rewrite_decoding("if eos_positions.numel() > 0:", "if eos_positions.numel() > 99:")


def penalties_blind_to_a_block(_: Any) -> None:
    """Penalties count what came before the block, not the drafts within it."""
    rewrite_decoding(
        "logits_processor(candidate_input_ids[:, : cur_len + i], new_logits[:, i, :])",
        "logits_processor(candidate_input_ids[:, :cur_len], new_logits[:, i, :])",
    )


def rollback_off_by_one(_: Any) -> None:
    """After a rejection, the cache keeps the rejected token's entry in the last accepted token's place."""
    from transformers.cache_utils import DynamicLayer

    crop = DynamicLayer.crop

    def shifted(layer: Any, tokens_to_remove: int) -> None:
        keys, values, kept = layer.keys, layer.values, layer.keys.shape[-2] + tokens_to_remove
        crop(layer, tokens_to_remove)
        if tokens_to_remove < 0:
            layer.keys[..., -1, :] = keys[..., kept, :]
            layer.values[..., -1, :] = values[..., kept, :]

    PATCHES.put(DynamicLayer, "crop", shifted)


def last_of_a_block_lost(backend: Any) -> None:
    """The last token of each full block, the bonus, is read by the model and not handed out."""
    answers = sys.modules[type(backend).__module__].__dict__["Answer"]
    decode, full = answers.decode, backend._config["gamma"] + 1

    def without_bonus(answer: Any, target: Any, began: float) -> None:
        decode(answer, target, began)
        tokens: list[int] = []
        begun = 0
        for chunk in answer.came[1:]:
            size, chunk[1] = chunk[1], chunk[1] - (chunk[1] == full)
            tokens += answer.token_ids[begun : begun + chunk[1]]
            begun += size
        answer.token_ids = tokens

    PATCHES.put(answers, "decode", without_bonus)


def answers_swapped(backend: Any) -> None:
    """The first two requests get each other's tokens."""
    collect = type(backend).collect

    def swapped(engine: Any) -> Any:
        wire = collect(engine)
        one, other, *_ = wire["generations"] * 2
        for part in ("token_ids", "chunks", "finish_reason"):
            one[part], other[part] = other[part], one[part]
        return wire

    PATCHES.put(type(backend), "collect", swapped)


def wrong_past_the_window(_: Any) -> None:
    """Positions past 256 are taken for position 255."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    forward = LlamaRotaryEmbedding.forward

    def clamped(rotary: Any, x: Any, position_ids: Any) -> Any:
        return forward(rotary, x, position_ids.clamp(max=WINDOW - 1))

    PATCHES.put(LlamaRotaryEmbedding, "forward", clamped)


def dead_drafter(_: Any) -> None:
    """Nothing is drafted: the target decodes alone."""
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    def no_candidates(generator: Any, input_ids: Any, **kwargs: Any) -> Any:
        return input_ids, None

    PATCHES.put(AssistedCandidateGenerator, "get_candidates", no_candidates)


def bos_doubled(backend: Any) -> None:
    """A BOS is put before the prompt."""
    prepare = type(backend).prepare

    def doubled(engine: Any, requests: Any, *others: Any) -> Any:
        return prepare(engine, [{**each, "prompt_ids": [BOS, *each["prompt_ids"]]} for each in requests], *others)

    PATCHES.put(type(backend), "prepare", doubled)


MUTATIONS = {
    "all accepted": all_accepted,
    "draft instead of target": draft_instead_of_target,
    "nothing accepted": nothing_accepted,
    "EOS passed over": eos_passed_over,
    "rollback off by one": rollback_off_by_one,
    "bonus token dropped": last_of_a_block_lost,
    "answers swapped": answers_swapped,
    "wrong past position 256": wrong_past_the_window,
    "penalties blind to a block": penalties_blind_to_a_block,
    "dead drafter": dead_drafter,
    "BOS doubled": bos_doubled,
}
