"""One worker, GPUs of its own: parallel workers choose among the visible GPUs, and a lock on each keeps others away.

The system lets go of a lock when its process ends, however it ends; beside each lies a note of who holds it. Whoever
waits for GPUs holds a further lock, the queue, so that who needs four is not overtaken for ever by those who need one.
The engines get the GPUs by their own CUDA_VISIBLE_DEVICES; that of the worker itself is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pytest_specdec.engines.spec import EngineSpec
    from pytest_specdec.hardware import Gpu

POLL_SECONDS = 0.2
VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Claim:
    """GPUs that this process holds, until `release` or its end."""

    gpus: tuple[Gpu, ...]
    _locks: tuple[FileLock, ...]

    @property
    def visible(self) -> str:
        """The value of CUDA_VISIBLE_DEVICES that shows these GPUs alone, by UUID."""
        return ",".join(gpu.uuid for gpu in self.gpus)

    def release(self) -> None:
        """Let others have them. Safe to call twice."""
        for lock in self._locks:
            lock.release()


def claim(gpus: Sequence[Gpu], wanted: int, run: str, timeout: float, folder: Path | None = None) -> Claim:
    """Hold `wanted` of `gpus`, waiting up to `timeout` seconds for those of other runs.

    `run` names the run that this process belongs to. Raises EngineError where there are too few GPUs, where workers of
    this very run hold so many that no waiting would help, or when the time is over. `folder`: where this user's locks
    are, one for all runs on this machine.
    """
    if len(gpus) < wanted:
        raise EngineError(
            f"{wanted} GPUs wanted for each worker, {len(gpus)} visible: deselect those tests, or show more"
        )
    place = folder or Path(tempfile.gettempdir()) / f"pytest-specdec-gpus-{os.getuid()}"
    deadline = time.monotonic() + timeout
    try:
        queue = FileLock(place / "queue.lock").acquire(timeout=timeout, poll_interval=POLL_SECONDS)
    except Timeout:
        raise EngineError(
            "others wait for GPUs, and the time for it is over: use fewer workers, or a later hour"
        ) from None
    with queue:
        while len(free := _lock_free(gpus, place)) < wanted:
            for lock in free.values():
                lock.release()
            told = _refuse_vain_waiting(gpus, free, wanted, run, place)
            if time.monotonic() >= deadline:
                raise EngineError(f"no {wanted} GPUs free within {timeout:g} s: {told}")
            time.sleep(POLL_SECONDS)
        for gpu in list(free)[wanted:]:
            free.pop(gpu).release()
        for gpu in free:
            (place / f"{gpu.uuid}.json").write_text(json.dumps({"run": run, "pid": os.getpid()}), "utf-8")
    return Claim(tuple(free), tuple(free.values()))


def _lock_free(gpus: Sequence[Gpu], folder: Path) -> dict[Gpu, FileLock]:
    free: dict[Gpu, FileLock] = {}
    for gpu in gpus:
        lock = FileLock(folder / f"{gpu.uuid}.lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            free[gpu] = lock
    return free


def _refuse_vain_waiting(gpus: Sequence[Gpu], free: Iterable[Gpu], wanted: int, run: str, folder: Path) -> str:
    """Who holds which GPUs. Workers of one run hold theirs until all of them are done, so none can wait for another."""
    holders: dict[Gpu, dict[str, object]] = {gpu: {} for gpu in gpus if gpu not in free}
    for gpu in holders:
        with contextlib.suppress(OSError, ValueError):  # it is just being written
            holders[gpu] = dict(json.loads((folder / f"{gpu.uuid}.json").read_text("utf-8")))
    if len(gpus) - sum(note.get("run") == run for note in holders.values()) < wanted:
        raise EngineError(
            f"{len(gpus)} visible GPUs are too few for so many workers with {wanted} each: use -n {len(gpus) // wanted}"
        )
    return ", ".join(f"{gpu.uuid} is held by process {note.get('pid', '?')}" for gpu, note in holders.items())


class Placement:
    """Gives every engine of one worker the same GPUs, claimed when the first engine is placed."""

    def __init__(self, claimed: Callable[[], Claim]) -> None:
        self._claimed = claimed
        self._claim: Claim | None = None

    def __call__(self, spec: EngineSpec) -> EngineSpec:
        """The specification with its GPUs; as it is, if it names them itself, is elsewhere, or is no real engine."""
        if spec.backend == "fake" or spec.gateway is not None or VARIABLE in spec.environment:
            return spec
        if self._claim is None:
            self._claim = self._claimed()
        return replace(spec, environment={**spec.environment, VARIABLE: self._claim.visible})

    def close(self) -> None:
        """Let others have the GPUs."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None


def count_gpus(specs: Iterable[EngineSpec], multi_gpu: Iterable[int]) -> int:
    """GPUs that the most demanding of these engines and of these `multi_gpu` marks needs, 1 at least."""
    return max([1, *(spec.gpus for spec in specs), *multi_gpu])
