"""What a mark says of a server, read and checked: where it is or how it is started, what it speaks, how it is asked.

    server={"url": "http://127.0.0.1:8000"}
    server={"command": ["trtllm-serve", "{model}", "--host", "{host}", "--port", "{port}"], "protocol": "trtllm"}
    server={}                                             vLLM, started here

Every key that is not known is refused by name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pytest_specdec.engines.server.dialects import DIALECTS, VLLM, Dialect
from pytest_specdec.errors import ConfigurationError

KEYS: Mapping[str, tuple[type, ...]] = {
    "url": (str,),
    "command": (list, tuple),
    "speculation": (list, tuple),
    "protocol": (str,),
    "ready": (str,),
    "metrics": (str,),
    "endpoint": (str,),
    "prompt": (str,),
    "model": (str,),
    "api_key_from": (str,),
    "request_timeout": (int, float),
    "vocabulary": (int,),
    "context": (int,),
    "eos_token_ids": (list, tuple),
    "raw_logits": (bool,),
}
CHOICES = {"protocol": tuple(DIALECTS), "endpoint": ("completions", "chat"), "prompt": ("ids", "text")}


def checked(said: Mapping[str, Any]) -> dict[str, Any]:
    """The same, if every key and value is one that a server can have. Raises ConfigurationError."""
    for key, value in said.items():
        _refuse_unknown(key)
        if not isinstance(value, KEYS[key]):
            kinds = " or ".join(kind.__name__ for kind in KEYS[key])
            raise ConfigurationError(f"server[{key!r}] is {value!r}: it must be a {kinds}")
        if value not in CHOICES.get(key, (value,)):
            raise ConfigurationError(f"server[{key!r}] is {value!r}: it must be one of {', '.join(CHOICES[key])}")
    if "url" in said and "command" in said:
        raise ConfigurationError("a server has a url (it runs) or a command (it is started here), not both")
    if "url" in said and urlsplit(said["url"]).scheme not in ("http", "https"):
        raise ConfigurationError(f"server['url'] is {said['url']!r}: it must begin with http:// or https://")
    _refuse_chat(said)
    return dict(said)


def _refuse_unknown(key: str) -> None:
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(KEYS)}"
        raise ConfigurationError(f"a server has no key {key!r}; {hint}")


def _refuse_chat(said: Mapping[str, Any]) -> None:
    dialect = DIALECTS[said.get("protocol", VLLM.name)]
    if said.get("endpoint") == "chat" and dialect.chat is None:
        raise ConfigurationError(f"{dialect.name} streams no token ids by chat: leave server['endpoint'] out")


def has_own_reference(said: Mapping[str, Any]) -> bool:
    """Whether the same server can be started without speculation: it is vLLM's, or its speculation is set apart."""
    return "url" not in said and (said.get("protocol", VLLM.name) == VLLM.name or "speculation" in said)


@dataclass(frozen=True)
class ServerPlan:
    """A server as the engine needs it. `url` is None for one that is to be started."""

    said: Mapping[str, Any]

    @property
    def dialect(self) -> Dialect:
        """What it speaks."""
        return DIALECTS[self.said.get("protocol", VLLM.name)]

    @property
    def url(self) -> str | None:
        """Where it runs."""
        url = self.said.get("url")
        return None if url is None else str(url).rstrip("/").removesuffix("/v1")

    @property
    def ready(self) -> str:
        """The path that answers once it is ready."""
        return str(self.said.get("ready", self.dialect.ready))

    @property
    def by_chat(self) -> bool:
        """Whether it is asked by chat."""
        return self.said.get("endpoint") == "chat"

    @property
    def as_text(self) -> bool:
        """Whether prompts go as text."""
        return self.by_chat or self.said.get("prompt") == "text"

    def headers(self, environment: Callable[[str], str | None] = os.environ.get) -> dict[str, str]:
        """The key, if one is needed. Raises ConfigurationError if its variable is not set."""
        variable = self.said.get("api_key_from")
        if variable is None:
            return {}
        key = environment(variable)
        if not key:
            raise ConfigurationError(f"server['api_key_from'] names the variable {variable}, which is not set")
        return {"Authorization": f"Bearer {key}"}
