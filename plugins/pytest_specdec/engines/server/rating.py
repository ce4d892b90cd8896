"""How a served target rates a text: `prompt_logprobs` of /v1/completions over prompt + output, one prefill each.

The answer has one entry for each prompt token, the first null, each a table from token id to {"logprob", "rank"}: the
token that stands there and the best ones. A prompt is only rated if there is room for one token more; where prompt and
output fill the context, the last token is generated instead, forced, and its row read from `logprobs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Score

TOKEN_ID = "token_id:"


@dataclass(frozen=True)
class Rating:
    """One output to be rated. `withheld` ids are not permitted before token `until`. `raw`: logits, not logprobs."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    until: int
    withheld: frozenset[int]
    context: int
    raw: bool

    @property
    def forced(self) -> tuple[int, ...]:
        """The last token, where prompt and output fill the context."""
        return self.output[-1:] if len(self.prompt) + len(self.output) >= self.context else ()

    def body(self, model: str) -> dict[str, Any]:
        """What is asked: as many of the best tokens as leave one when the withheld ones are taken away."""
        best = 1 + (len(self.withheld) if self.until else 0)
        rated = self.output[: len(self.output) - len(self.forced)]
        asked = {
            "model": model,
            "prompt": [*self.prompt, *rated],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": best,
        }
        forced = {"logprobs": best, "allowed_token_ids": list(self.forced), "return_tokens_as_token_ids": True}
        return asked | (forced if self.forced else {})

    def scores(self, answer: Mapping[str, Any]) -> tuple[Score, ...]:
        """Read the answer. Raises EngineError if it does not rate what was asked."""
        choice = answer["choices"][0]
        count = len(self.output) - len(self.forced)
        told = (choice.get("prompt_logprobs") or [])[-count:] if count else []
        rows = [{int(token): item["logprob"] for token, item in row.items()} for row in told]
        if self.forced:
            best = choice["logprobs"]["top_logprobs"][0]
            rows.append({int(token.removeprefix(TOKEN_ID)): value for token, value in best.items()})
        if len(rows) != len(self.output):
            raise EngineError(f"{len(rows)} ratings for {len(self.output)} tokens: {NO_RATING}")
        return tuple(self._score(at, token, row) for at, (token, row) in enumerate(zip(self.output, rows, strict=True)))

    def _score(self, at: int, token: int, row: Mapping[int, float]) -> Score:
        permitted = {each: value for each, value in row.items() if not (at < self.until and each in self.withheld)}
        argmax = max(permitted, key=lambda each: permitted[each])
        return Score(permitted[argmax] - row[token], permitted[argmax] if self.raw else None, argmax)


NO_RATING = (
    "the endpoint does not rate prompts (prompt_logprobs); name a reference in this process, "
    'e.g. @pytest.mark.specdec(reference="vllm") or reference="transformers"'
)
