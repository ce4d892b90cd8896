"""A request as a server of some dialect wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_specdec.engines.server.dialects import Dialect, Route
from pytest_specdec.workloads.workload import Request


@dataclass(frozen=True)
class Asking:
    """How this server is asked: its dialect, the model's name there, and whether by chat.

    `as_text`: prompts go as text, which the server encodes itself.
    """

    dialect: Dialect
    model: str
    chat: bool = False
    as_text: bool = False

    @property
    def route(self) -> Route:
        """Where answers are asked for."""
        return self.dialect.chat if self.chat and self.dialect.chat else self.dialect.completions

    def body(self, request: Request, text: str | None) -> dict[str, Any]:
        """The JSON of a streamed request; `text` is the prompt as text where it goes as text."""
        route, dialect = self.route, self.dialect
        return {
            "model": self.model,
            route.prompt: self._prompt(request, text),
            route.limit: request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **dialect.neutral,
            **dialect.asks,
            **_limits(request),
            **request.sampling,
        }

    def _prompt(self, request: Request, text: str | None) -> Any:
        if self.chat:
            return [{"role": "user", "content": text}]
        return text if self.as_text else list(request.prompt_ids)


def _limits(request: Request) -> dict[str, Any]:
    """What the request itself says of its end; what it leaves open is not sent, since not every server knows it."""
    said = {
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_token_ids),
    }
    return {name: value for name, value in said.items() if value}
