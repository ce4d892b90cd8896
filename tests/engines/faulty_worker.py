"""A real engine in a worker, with faults of its KV cache that come and go: the kit's text is put after the backend's.

`wrong_tokens` decodes a few random prompts and holds the answers against the known ones of a constructed pair.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.host import WorkerEngine, backend_source
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.models import expected_continuation, resolve
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.workload import Request, Workload

PROMPT, TOKENS = 33, 40
HERE = Path(__file__).parent
NOT_SHIPPED = ("from __future__ import annotations\n", "from tests.engines.mutations import PATCHES\n")
KITS = {"transformers": ("kv_faults.py", "TransformersBackend"), "vllm": ("paged_faults.py", "VllmBackend")}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "transformers": {"device": "cpu"},
    "vllm": {"block_size": 32, "async_scheduling": False},
}
ENTRY = {"position": 28, "length": PROMPT, "layer": None, "head": None}  # one that is read again; once it is written
AT = {**ENTRY, "request": None, "size": 1, "rejection": None}


class FaultyWorker(WorkerEngine):
    """A worker whose backend has faults of the KV cache after it, and then what `later` says."""

    def __init__(self, spec: EngineSpec, settings: Settings, later: str = "") -> None:
        find = partial(resolve, cache=settings.cache)
        super().__init__(spec, settings.load_timeout, settings.timeout, find, faulty_source(spec.backend) + later)

    def plant(self, fault: str | None, *places: Mapping[str, Any]) -> None:
        """Have this fault in these places from now on, or none."""
        self._call("plant", fault, *({**AT, **place} for place in places))

    def wrong_tokens(self, fault: str | None, where: Mapping[str, Any]) -> int:
        """How many tokens are wrong with a fault, or without."""
        self.plant(fault, where)
        run = one_pass(self, ASKED)
        known = [expected_continuation(self.spec.target, each.prompt_ids, TOKENS) for each in ASKED.requests]
        answers = [generation.token_ids for generation in run.generations]
        return sum(map(differing, answers, known))


def faulty_source(backend: str) -> str:
    """The backend and, after it, its faults and the way into them."""
    faults, owner = KITS[backend]
    later = "\n".join(HERE.joinpath(name).read_text("utf-8") for name in ("mutations.py", faults))
    for line in NOT_SHIPPED:
        later = later.replace(line, "")
    return "\n".join([backend_source(backend), later, f"{owner}.plant = plant\n"])


def differing(answer: tuple[int, ...], known: list[int]) -> int:
    """How many tokens of an answer are not the known ones."""
    return sum(got != wanted for got, wanted in zip(answer, known, strict=True))


def random_requests(count: int) -> tuple[Request, ...]:
    """Requests of random tokens."""
    drawn = random.Random(11)
    prompts = [tuple(drawn.choices(range(3, 1024), k=PROMPT)) for _ in range(count)]
    return tuple(Request(prompt, TOKENS) for prompt in prompts)


ASKED = Workload("faults", random_requests(4), concurrency=4)
