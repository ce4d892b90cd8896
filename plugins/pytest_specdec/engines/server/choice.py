"""Which server a mark or the settings mean, and which reference it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_specdec.engines.server.dialects import VLLM
from pytest_specdec.engines.server.plan import checked, has_own_reference
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.settings import Settings

SERVED = "server"
UNKNOWN_METHOD = "served"
REFERENCE_KEYS = frozenset({"engine", "target", "dtype", "max_model_len", "options", "environment", "python"})


def served(base: EngineSpec, mark: Mapping[str, Any], settings: Settings) -> EngineSpec:
    """`base` as a served engine with its server and its reference. Raises ConfigurationError."""
    spec = replace(base, server=checked(mark.get("server", _of_settings(settings))))
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
        return _alone(base, SERVED, {"target": said.get("target", base.target), "server": checked(server)})
    unknown = sorted(set(said) - REFERENCE_KEYS)
    if unknown:
        raise ConfigurationError(
            f"reference has no key {unknown[0]!r}; known keys: {', '.join(sorted(REFERENCE_KEYS))}"
        )
    return _alone(base, said["engine"], {key: value for key, value in said.items() if key != "engine"})


def _alone(base: EngineSpec, backend: str, said: Mapping[str, Any]) -> EngineSpec:
    """A target-only engine of the same target, dtype and length, except where it is said otherwise."""
    same = EngineSpec(backend=backend, target=base.target, dtype=base.dtype, max_model_len=base.max_model_len)
    return replace(same, **said)
