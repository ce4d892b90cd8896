"""What a mark says of a server, read and checked: where it is or how it is started, what it speaks, how it is asked.

    server={"url": "http://127.0.0.1:8000"}
    server={"command": ["trtllm-serve", "{model}", "--host", "{host}", "--port", "{port}"], "protocol": "trtllm"}
    server={}                                             vLLM, started here

Every key that is not known is refused by name. What the server is compared with, the reference, is read here too.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pytest_specdec.engines.server.dialects import DIALECTS, VLLM, Dialect
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.settings import Settings

SERVED = "server"
UNKNOWN_METHOD = "served"
REFERENCE_KEYS = frozenset({"engine", "target", "dtype", "max_model_len", "options", "environment", "python"})
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
    "keeps_ends": (bool,),
    "raw_logits": (bool,),
}
CHOICES = {"protocol": tuple(DIALECTS), "endpoint": ("completions", "chat"), "prompt": ("ids", "text")}


def check_keys(said: Mapping[str, Any]) -> dict[str, Any]:
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
        raise ConfigurationError(f"server: unknown key {key!r}; {hint}")


def _refuse_chat(said: Mapping[str, Any]) -> None:
    dialect = DIALECTS[said.get("protocol", VLLM.name)]
    if said.get("endpoint") == "chat" and dialect.chat is None:
        raise ConfigurationError(f"{dialect.name} streams no token ids by chat: leave server['endpoint'] out")


def has_own_reference(said: Mapping[str, Any]) -> bool:
    """Whether the same server can be started without speculation: it is vLLM's, or its speculation is set apart."""
    return "url" not in said and (said.get("protocol", VLLM.name) == VLLM.name or "speculation" in said)


def with_server(base: EngineSpec, mark: Mapping[str, Any], settings: Settings) -> EngineSpec:
    """`base` as a served engine with its server and its reference. Raises ConfigurationError."""
    spec = replace(base, server=check_keys(mark.get("server", _of_settings(settings))))
    reference = mark.get("reference", settings.server_reference)
    if reference is not None:
        return replace(spec, reference=_reference(reference, base))
    if not has_own_reference(spec.server):
        raise ConfigurationError(
            "nothing says what this server's target alone answers: name the reference, e.g. "
            'reference="vllm", reference="transformers" or reference={"url": …}, or list the part of the '
            "command that makes it speculate as server['speculation']"
        )
    return spec


def what_a_server_decides(base: EngineSpec) -> dict[str, Any]:
    """Method, γ and draft of a server that brings its own: not known unless the mark says them."""
    if base.backend != SERVED or _is_built(base.server):
        return {}
    return {"method": UNKNOWN_METHOD, "gamma": None, "draft": None}


def _is_built(server: Mapping[str, Any]) -> bool:
    """Whether its speculation follows from method, γ and draft."""
    is_vllm = server.get("protocol", VLLM.name) == VLLM.name
    return is_vllm and "url" not in server and "speculation" not in server


def _of_settings(settings: Settings) -> dict[str, Any]:
    said = {"url": settings.server_url, "protocol": settings.server_protocol}
    return {key: value for key, value in said.items() if value is not None}


def _reference(said: Any, base: EngineSpec) -> EngineSpec:
    if isinstance(said, str):
        said = {"url": said} if "://" in said else {"engine": said}
    if not isinstance(said, Mapping):
        raise ConfigurationError(f"reference is {said!r}: it must be an engine's name or a table with url or command")
    if "engine" not in said:
        server = {key: value for key, value in said.items() if key != "target"}
        return _alone(base, SERVED, {"target": said.get("target", base.target), "server": check_keys(server)})
    unknown = sorted(set(said) - REFERENCE_KEYS)
    if unknown:
        raise ConfigurationError(
            f"reference: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(REFERENCE_KEYS))}"
        )
    return _alone(base, said["engine"], {key: value for key, value in said.items() if key != "engine"})


def _alone(base: EngineSpec, backend: str, said: Mapping[str, Any]) -> EngineSpec:
    """A target-only engine of the same target, dtype and length, except where it is said otherwise."""
    same = EngineSpec(backend=backend, target=base.target, dtype=base.dtype, max_model_len=base.max_model_len)
    return replace(same, **said)


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
