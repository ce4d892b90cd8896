"""Start an engine of this package from its specification."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.engines.engine import Engine
from pytest_specdec.engines.model_files import refuse_other_tokenizer
from pytest_specdec.engines.server.plan import SERVED
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError, SpecdecError
from pytest_specdec.settings import Settings

if TYPE_CHECKING:
    from pytest_specdec.progress import Doing

IN_WORKERS = ("vllm", "transformers")


def start(spec: EngineSpec, settings: Settings, doing: Doing = nullcontext) -> Engine:
    """An engine, loaded and awake; `doing` hears of a model that is made for it.

    Raises EngineError, also for a model reference that cannot be made.
    """
    if spec.backend == "fake":
        from pytest_specdec.engines.fake import FakeEngine

        return FakeEngine(spec)
    if spec.backend not in (*IN_WORKERS, SERVED):
        ours = ", ".join((*IN_WORKERS, SERVED))
        raise EngineError(
            f"no plugin answers to the engine {spec.backend!r}; this package has {ours} and fake, "
            "and others come by the hook pytest_specdec_start_engine"
        )
    return _with_models(spec, settings, doing)


def _with_models(spec: EngineSpec, settings: Settings, doing: Doing) -> Engine:
    from pytest_specdec.models import resolve

    find = partial(resolve, cache=settings.cache, doing=doing)
    try:
        tokenizers = _draft_tokenizer(spec, find)
        engine = _kind(spec)(spec, settings.load_timeout, settings.timeout, find)
    except EngineError:
        raise
    except SpecdecError as error:
        raise EngineError(f"{spec.label}: {error}") from error
    details = {**engine.description.details, "draft_tokenizer": tokenizers}
    engine.description = replace(engine.description, details=details)
    return engine


def _kind(spec: EngineSpec) -> Callable[[EngineSpec, float, float, Callable[[str], str]], Engine]:
    if spec.backend == SERVED:
        from pytest_specdec.engines.server.engine import ServedEngine

        return ServedEngine
    from pytest_specdec.engines.host import WorkerEngine

    return WorkerEngine


def _draft_tokenizer(spec: EngineSpec, find: Callable[[str], str]) -> str | None:
    """How the draft's tokenizer compares with the target's; None without a draft model on this machine."""
    if spec.draft is None or spec.gateway is not None:
        return None
    return refuse_other_tokenizer(find(spec.target), find(spec.draft))
