"""What a mark says of a server and of its reference, read and checked: where it is, what it speaks, how it is asked.

    server={"url": "http://127.0.0.1:8000"}
    server={"command": ["trtllm-serve", "{model}", "--host", "{host}", "--port", "{port}"], "protocol": "trtllm"}
    server={}                                             vLLM, started here

Every key that is not known is refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from pytest_specdec.engines.server.dialects import DIALECTS, VLLM, Dialect, Route
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import ConfigurationError, EngineError, unknown_key
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.mistakes import Mistake
from pytest_specdec.workloads.workload import Request

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
    ready: str = "/health"
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
    keeps_ends: bool = True
    raw_logits: bool | None = None

    @field_validator("url")
    @classmethod
    def _of_http(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise Mistake("it must begin with http:// or https://")
        return url and url.rstrip("/").removesuffix("/v1")

    @field_validator("protocol")
    @classmethod
    def _known(cls, protocol: str) -> str:
        if protocol not in DIALECTS:
            raise Mistake(f"it must be one of {', '.join(DIALECTS)}")
        return protocol

    @model_validator(mode="after")
    def _agreeing(self) -> ServerPlan:
        if self.url and self.command:
            raise Mistake("a server has a url (it runs) or a command (it is started here), not both")
        if self.by_chat and self.dialect.chat is None:
            raise Mistake(f"{self.protocol} streams no token ids by chat: leave server['endpoint'] out")
        if self.as_messages and not self.by_chat:
            raise Mistake("messages are written into a prompt by chat alone: say server['endpoint'] = \"chat\" too")
        if self.by_chat and not self.stream:
            raise Mistake("a server is asked by chat in streams only: leave server['stream'] out")
        return self

    @property
    def dialect(self) -> Dialect:
        """What it speaks."""
        return DIALECTS[self.protocol]

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

    def route(self, request: Request) -> Route:
        """Where the answer to this request is asked for; by messages, what is no conversation goes as ids, not by chat.

        So does a prompt that goes on after an answer.
        """
        as_ids = self.as_messages and request.whole_conversation is None
        return self.dialect.chat if self.by_chat and not as_ids and self.dialect.chat else self.dialect.completions

    def body(self, request: Request, text: str | None, model: str) -> dict[str, Any]:
        """The JSON of a request; `text` is the prompt as text where it goes as text, `model` its name at the server.

        Raises EngineError for a field of sampling that the server has not.
        """
        route, dialect = self.route(request), self.dialect
        asked = {**self._prompt(request, route, text), **({"stream": True} if self.stream else {})}
        limits = {route.limit: request.max_tokens, **dialect.neutral}
        fields = {**_limits(request), **request.sampling}
        said = {dialect.names.get(name, name): value for name, value in fields.items()}
        _refuse_unknown(dialect, said)
        if route.sampling is not None:
            return {**asked, **dialect.asks, route.sampling: {**limits, **said}}
        usage = {"stream_options": {"include_usage": True}} if self.stream else {}
        return {"model": model, **asked, **usage, **limits, **dialect.asks, **said}

    def _prompt(self, request: Request, route: Route, text: str | None) -> dict[str, Any]:
        talk = request.whole_conversation if self.as_messages else None
        if talk is not None:
            template = {"chat_template_kwargs": dict(talk.template)} if talk.template else {}
            return {route.prompt: list(map(dict, talk.messages)), **template}
        if self.as_text and self.by_chat:
            return {route.prompt: [{"role": "user", "content": text}]}
        return {route.prompt: text if self.as_text else list(request.prompt_ids)}

    def headers(self) -> dict[str, str]:
        """The key, if one is needed. Raises ConfigurationError if its variable is not set."""
        if self.api_key_from is None:
            return {}
        key = os.environ.get(self.api_key_from)
        if not key:
            raise ConfigurationError(f"server['api_key_from'] names the variable {self.api_key_from}, which is not set")
        return {"Authorization": f"Bearer {key}"}


def _refuse_unknown(dialect: Dialect, sampling: Mapping[str, Any]) -> None:
    known = sampling.keys() if dialect.fields is None else dialect.fields
    for name in sampling.keys() - known:
        remedy = f"leave it out, or say one of {', '.join(sorted(known))}"
        raise EngineError(f"sampling: protocol {dialect.name!r} has no {name!r}: {remedy}")


def _limits(request: Request) -> dict[str, Any]:
    """What the request itself says of its end; what it leaves open is not sent, since not every server knows it."""
    said = {
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_token_ids),
    }
    return {name: value for name, value in said.items() if value}


def checked(said: Mapping[str, Any]) -> dict[str, Any]:
    """The same, if every key and value is one that a server can have. Raises ConfigurationError."""
    try:
        ServerPlan(**said)
    except ValidationError as error:
        raise ConfigurationError("; ".join(map(_mistake, error.errors()))) from None
    return dict(said)


def _mistake(error: ErrorDetails) -> str:
    told = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    if not error["loc"]:
        return told
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return unknown_key("server", key, ServerPlan.model_fields)
    return f"server[{key!r}] is {error['input']!r}: {told}"


def with_server(base: EngineSpec, mark: Mapping[str, Any], settings: Settings) -> EngineSpec:
    """`base` as a served engine with its server and its reference. Raises ConfigurationError."""
    addressed = {"url": settings.server_url, "protocol": settings.server_protocol}
    said = mark.get("server", {key: value for key, value in addressed.items() if value is not None})
    spec = replace(base, server=checked(said))
    reference = mark.get("reference", settings.server_reference)
    if reference is not None:
        return replace(spec, reference=reference_of(reference, base))
    plan = ServerPlan(**spec.server)
    if plan.url is not None or (plan.dialect is not VLLM and plan.speculation is None):
        raise ConfigurationError(
            "nothing says what this server's target alone answers: name the reference, e.g. "
            'reference="vllm", reference="transformers" or reference={"url": …}, or list the part of the '
            "command that makes it speculate as server['speculation']"
        )
    return spec


def what_a_server_decides(base: EngineSpec) -> dict[str, Any]:
    """Method, γ and draft of a server that brings its own: not known unless the mark says them."""
    if base.backend != SERVED:
        return {}
    plan = ServerPlan(**base.server)
    if plan.dialect is VLLM and plan.url is None and plan.speculation is None:
        return {}
    return {"method": UNKNOWN_METHOD, "gamma": None, "draft": None}


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
    for unknown in sorted(set(said) - REFERENCE_KEYS):
        raise ConfigurationError(unknown_key("reference", unknown, sorted(REFERENCE_KEYS)))
    other = {key: value for key, value in said.items() if key != "engine"}
    if said["engine"] == base.backend != SERVED:
        return replace(base.target_only(), **other)
    return _alone(base, said["engine"], other)


def _alone(base: EngineSpec, backend: str, said: Mapping[str, Any]) -> EngineSpec:
    same = {name: getattr(base, name) for name in ("target", "dtype", "max_model_len", "gateway")}
    return EngineSpec(backend=backend, **{**same, **said})
