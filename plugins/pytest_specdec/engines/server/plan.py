"""What a mark says of a server, read and checked: where it is or how it is started, what it speaks, how it is asked.

    server={"url": "http://127.0.0.1:8000"}
    server={"command": ["trtllm-serve", "{model}", "--host", "{host}", "--port", "{port}"], "protocol": "trtllm"}
    server={}                                             vLLM, started here

Every key that is not known is refused by name. What the server is compared with, the reference, is read here too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from pytest_specdec.engines.server.dialects import DIALECTS, VLLM, Dialect
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import ConfigurationError, did_you_mean
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.mistakes import invalid

SERVED = "server"
UNKNOWN_METHOD = "served"
REFERENCE_KEYS = frozenset({"engine", "target", "dtype", "max_model_len", "options", "environment", "python"})


class ServerPlan(BaseModel):
    """A server as the engine needs it; docs/served-engines.md has each key. `url` is None for one that is started."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    url: str | None = None
    command: Sequence[str] | None = None
    speculation: Sequence[str] | None = None
    protocol: str = VLLM.name
    ready: str | None = None
    metrics: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    prompt: Literal["ids", "text", "messages"] = "ids"
    stream: bool = True
    model: str | None = None
    api_key_from: str | None = None
    request_timeout: float | None = None
    vocabulary: int | None = None
    context: int | None = None
    eos_token_ids: Sequence[int] = ()
    keeps_ends: bool | None = None
    raw_logits: bool | None = None

    @field_validator("url")
    @classmethod
    def _of_http(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise invalid("it must begin with http:// or https://")
        return url and url.rstrip("/").removesuffix("/v1")

    @field_validator("protocol")
    @classmethod
    def _known(cls, protocol: str) -> str:
        if protocol not in DIALECTS:
            raise invalid(f"it must be one of {', '.join(DIALECTS)}")
        return protocol

    @model_validator(mode="after")
    def _agreeing(self) -> ServerPlan:
        if self.url and self.command:
            raise invalid("a server has a url (it runs) or a command (it is started here), not both")
        if self.by_chat and self.dialect.chat is None:
            raise invalid(f"{self.protocol} streams no token ids by chat: leave server['endpoint'] out")
        if self.as_messages and not self.by_chat:
            raise invalid("messages are written into a prompt by chat alone: say server['endpoint'] = \"chat\" too")
        if self.by_chat and not self.stream:
            raise invalid("a server is asked by chat in streams only: leave server['stream'] out")
        return self

    @property
    def dialect(self) -> Dialect:
        """What it speaks."""
        return DIALECTS[self.protocol]

    @property
    def is_built(self) -> bool:
        """Whether its speculation follows from method, γ and draft."""
        return self.dialect is VLLM and self.url is None and self.speculation is None

    @property
    def has_own_reference(self) -> bool:
        """Whether it can be started without speculation: it is vLLM's, or its speculation is set apart."""
        return self.url is None and (self.dialect is VLLM or self.speculation is not None)

    @property
    def by_chat(self) -> bool:
        """Whether it is asked by chat."""
        return self.endpoint == "chat"

    @property
    def as_messages(self) -> bool:
        """Whether conversations go as they are, for the server's own chat template to write."""
        return self.prompt == "messages"

    @property
    def as_text(self) -> bool:
        """Whether prompts go as text."""
        return not self.as_messages and (self.by_chat or self.prompt == "text")

    def headers(self) -> dict[str, str]:
        """The key, if one is needed. Raises ConfigurationError if its variable is not set."""
        if self.api_key_from is None:
            return {}
        key = os.environ.get(self.api_key_from)
        if not key:
            raise ConfigurationError(f"server['api_key_from'] names the variable {self.api_key_from}, which is not set")
        return {"Authorization": f"Bearer {key}"}


def checked(said: Mapping[str, Any]) -> dict[str, Any]:
    """The same, if every key and value is one that a server can have. Raises ConfigurationError."""
    try:
        ServerPlan(**said)
    except ValidationError as error:
        raise ConfigurationError("; ".join(map(_mistake, error.errors()))) from None
    return dict(said)


def _mistake(error: ErrorDetails) -> str:
    if not error["loc"]:
        return error["msg"]
    key, known = str(error["loc"][0]), ServerPlan.model_fields
    if error["type"] == "extra_forbidden":
        return f"server: unknown key {key!r}; {did_you_mean(key, known, 'known keys: ' + ', '.join(known))}"
    return f"server[{key!r}] is {error['input']!r}: {error['msg']}"


def with_server(base: EngineSpec, mark: Mapping[str, Any], settings: Settings) -> EngineSpec:
    """`base` as a served engine with its server and its reference. Raises ConfigurationError."""
    spec = replace(base, server=checked(mark.get("server", _of_settings(settings))))
    reference = mark.get("reference", settings.server_reference)
    if reference is not None:
        return replace(spec, reference=reference_of(reference, base))
    if not ServerPlan(**spec.server).has_own_reference:
        raise ConfigurationError(
            "nothing says what this server's target alone answers: name the reference, e.g. "
            'reference="vllm", reference="transformers" or reference={"url": …}, or list the part of the '
            "command that makes it speculate as server['speculation']"
        )
    return spec


def what_a_server_decides(base: EngineSpec) -> dict[str, Any]:
    """Method, γ and draft of a server that brings its own: not known unless the mark says them."""
    if base.backend != SERVED or ServerPlan(**base.server).is_built:
        return {}
    return {"method": UNKNOWN_METHOD, "gamma": None, "draft": None}


def _of_settings(settings: Settings) -> dict[str, Any]:
    said = {"url": settings.server_url, "protocol": settings.server_protocol}
    return {key: value for key, value in said.items() if value is not None}


def reference_of(said: Any, base: EngineSpec) -> EngineSpec:
    """The target-only engine that `said` names for `base`. Raises ConfigurationError.

    A table that names none means an engine of its own kind in all that it does not say otherwise.
    """
    if isinstance(said, str):
        said = {"url": said} if "://" in said else {"engine": said}
    if not isinstance(said, Mapping):
        raise ConfigurationError(
            f"reference is {said!r}: it must be an engine's name, or a table with url, command or options"
        )
    if base.backend != SERVED and not said.keys() & {"engine", "url", "command"}:
        said = {"engine": base.backend, **said}
    if "engine" not in said:
        server = {key: value for key, value in said.items() if key != "target"}
        return _alone(base, SERVED, {"target": said.get("target", base.target), "server": checked(server)})
    unknown = sorted(set(said) - REFERENCE_KEYS)
    if unknown:
        known = f"known keys: {', '.join(sorted(REFERENCE_KEYS))}"
        raise ConfigurationError(
            f"reference: unknown key {unknown[0]!r}; {did_you_mean(unknown[0], sorted(REFERENCE_KEYS), known)}"
        )
    other = {key: value for key, value in said.items() if key != "engine"}
    if said["engine"] == base.backend != SERVED:
        return replace(base.target_only(), **other)
    return _alone(base, said["engine"], other)


def _alone(base: EngineSpec, backend: str, said: Mapping[str, Any]) -> EngineSpec:
    """A target-only engine of the same target, dtype, length and machine, except where it is said otherwise."""
    same = EngineSpec(
        backend=backend,
        target=base.target,
        dtype=base.dtype,
        max_model_len=base.max_model_len,
        gateway=base.gateway,
    )
    return replace(same, **said)
