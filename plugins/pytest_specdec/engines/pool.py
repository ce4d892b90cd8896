"""The engines of a session: how one is started, which one is awake, and which are kept.

Each configuration is loaded once. Tests are ordered by target and then by engine, target-only first, so two engines are
kept: the reference of the present target, and one speculative engine; one is awake. An engine that died is loaded anew
at the next request; one that did not load is not tried again in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.engines.engine import Description, Engine
from pytest_specdec.engines.methods import method_named
from pytest_specdec.engines.model_files import refuse_other_tokenizer
from pytest_specdec.engines.server.plan import SERVED
from pytest_specdec.engines.spec import IN_WORKERS, EngineSpec
from pytest_specdec.errors import EngineDied, EngineError, SpecdecError
from pytest_specdec.settings import Settings

if TYPE_CHECKING:
    from pytest_specdec.progress import Doing


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

    if spec.backend == SERVED:
        from pytest_specdec.engines.server.engine import ServedEngine

        kind: Callable[..., Engine] = ServedEngine
    else:
        from pytest_specdec.engines.host import WorkerEngine

        kind = WorkerEngine
    find = partial(resolve, cache=settings.cache, doing=doing)
    tokenizers = None  # where there is no draft model on this machine
    try:
        if spec.draft is not None and spec.gateway is None:
            tokenizers = refuse_other_tokenizer(find(spec.target), find(spec.draft), spec.other_vocabulary)
        engine = kind(spec, settings.load_timeout, settings.timeout, find)
    except EngineError:
        raise
    except SpecdecError as error:
        raise EngineError(f"{spec.label}: {error}") from error
    details = {**engine.description.details, "draft_tokenizer": tokenizers}
    engine.description = replace(engine.description, details=details)
    return engine


def _as_asked(engine: Engine) -> Engine:
    spec, told = engine.spec, engine.description.details.get("speculation") or {}
    method, gamma = told.get("method", spec.method), told.get("gamma", spec.gamma)
    if (method_named(method).name, gamma) == (spec.method, spec.gamma):
        return engine
    engine.close()
    if not spec.speculates:
        wrong = (
            f"the baseline would speculate, by {method!r}: take speculation out of its options or checkpoint, and say "
            "method, draft and gamma instead"
        )
    elif method_named(method).name != spec.method:
        wrong = (
            f"the method {spec.method} was asked for, and the engine drafts by {method}: name that method, or a draft "
            f"whose path and config.json do not tell the engine so; here it is {spec.draft}"
        )
    else:
        wrong = (
            f"γ = {spec.gamma} was asked for, and the engine drafts {gamma} tokens a step by {method}: name that γ, or "
            "take out what sets it, in speculative_options for example"
        )
    raise EngineError(f"{spec.label}: {wrong}")


Start = Callable[[EngineSpec], Engine]
Place = Callable[[EngineSpec], EngineSpec]


class Pool:
    """The engines of one session."""

    def __init__(self, start: Start, place: Place = lambda spec: spec) -> None:
        """`start` loads an engine, awake; it raises EngineError. `place` says on which GPUs, the same each time.

        `loading`: a context in which each is loaded.
        """
        self._start = start
        self._place = place
        self._engines: dict[str, Engine] = {}
        self._awake: str | None = None
        self._refused: dict[str, EngineError] = {}
        self.loads: list[str] = []
        self.loading: Callable[[], AbstractContextManager[None]] = nullcontext

    def awake(self, spec: EngineSpec) -> Engine:
        """The engine of this specification, loaded and the only one awake. Raises EngineError."""
        spec = self._place(spec)
        if (refused := self._refused.get(spec.key)) is not None:
            raise type(refused)(f"not tried again in this session: {refused}")
        if self._awake == spec.key:
            return self._engines[spec.key]
        self._make_room_for(spec)
        if spec.key in self._engines:
            self._engines[spec.key].wake()
        else:
            self._load(spec)
        self._awake = spec.key
        return self._engines[spec.key]

    def wake(self, spec: EngineSpec) -> bool:
        """Make sure that this engine can run; whether it had to be woken. Raises EngineError.

        Engines that give nothing up when parked can all run once they are loaded.
        """
        engine = self._engines.get(self._place(spec).key)
        if engine is not None and not engine.description.parks:
            return False
        asleep = self._awake != self._place(spec).key
        self.awake(spec)
        return asleep

    def describe(self, spec: EngineSpec) -> Description | None:
        """What the engine of this specification said of itself; None while it is not loaded."""
        engine = self._engines.get(self._place(spec).key)
        return engine.description if engine is not None else None

    @contextmanager
    def using(self, spec: EngineSpec) -> Iterator[Engine]:
        """`awake`; if one dies in the block, this and the awake one are forgotten: the next request gets new ones."""
        try:
            yield self.awake(spec)
        except EngineDied:
            for key in {self._place(spec).key, self._awake or ""}:
                self._forget(key)
            raise

    def close(self) -> None:
        """End every engine, also where one of them does not end."""
        with ExitStack() as ends:
            for key in list(self._engines):
                ends.callback(self._forget, key)

    def _make_room_for(self, spec: EngineSpec) -> None:
        keep = {spec.key, spec.target_only().key}
        if not spec.speculates:
            keep |= {key for key, engine in self._engines.items() if engine.spec.target_only().key == spec.key}
        for key in [key for key in self._engines if key not in keep]:
            self._forget(key)
        if self._awake is not None:
            self._engines[self._awake].park()
            self._awake = None

    def _load(self, spec: EngineSpec) -> None:
        try:
            with self.loading():
                self._engines[spec.key] = _as_asked(self._start(spec))
        except EngineError as error:
            self._refused[spec.key] = error
            raise
        self.loads.append(spec.key)

    def _forget(self, key: str) -> None:
        engine = self._engines.pop(key, None)
        if self._awake == key:
            self._awake = None
        if engine is not None:
            engine.close()
