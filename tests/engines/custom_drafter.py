"""A drafter of the user's own for vLLM's `custom_class`: what followed the last tokens where they stood before."""

from __future__ import annotations

from typing import Any

LOOKED_UP = 25


class Again:
    """Looks the last tokens up in the text of their request."""

    def __init__(self, vllm_config: Any) -> None:
        self._gamma = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, target: Any) -> None:
        """Nothing: vLLM's runner for CPUs asks every drafter."""

    def propose(self, sampled: list[list[int]], lengths: Any, token_ids: Any, **_: Any) -> list[list[int]]:
        """Drafts of each request, none for one that sampled nothing in this step."""
        texts = (token_ids[row, : lengths[row]].tolist() for row in range(len(sampled)))
        return [self._after(text) if new else [] for text, new in zip(texts, sampled, strict=True)]

    def _after(self, text: list[int]) -> list[int]:
        wanted = text[-LOOKED_UP:]
        starts = range(len(text) - LOOKED_UP - 1, -1, -1)
        found = next((at + LOOKED_UP for at in starts if text[at : at + LOOKED_UP] == wanted), len(text))
        return text[found : found + self._gamma]
