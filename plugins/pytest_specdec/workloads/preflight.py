"""What is checked before an engine sees a prompt: that it has tokens, that the target knows them, and that they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """`vocabulary`: number of token ids, which run from 0. `context`: longest prompt plus output, in tokens."""

    vocabulary: int
    context: int

    def faults(self, prompt: Sequence[int], max_tokens: int) -> Iterator[str]:
        """What is wrong with one prompt, each with its remedy; nothing if the engine can take it."""
        if not prompt:
            yield "is empty, so there is nothing to continue: give it at least one token"
        if len(prompt) + max_tokens > self.context:
            yield (
                f"{len(prompt)} + {max_tokens} tokens exceed the engine's context of {self.context}:"
                " shorten it or raise max_model_len"
            )
        if strange := self.unknown_ids(prompt):
            yield f"{strange}: write ids of this target's tokenizer"

    def unknown_ids(self, ids: Sequence[int]) -> str | None:
        """The ids that lie outside of the vocabulary, in words; None where all lie inside."""
        strange = sorted({token for token in ids if token >= self.vocabulary})
        if not strange:
            return None
        shown = ", ".join(map(str, strange[:5])) + (", …" if len(strange) > 5 else "")
        return f"token id {shown} outside of the vocabulary of {self.vocabulary} ids (0 to {self.vocabulary - 1})"
