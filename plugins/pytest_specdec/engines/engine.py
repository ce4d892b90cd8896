"""The protocol between the gate and an engine: prepare, run, collect; score; park and wake; close.

A run is split in three so that only the decoding itself lies between two clock readings: requests are sent and built in
`prepare`, token ids and arrival times come back in `collect`, and `run` exchanges one word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Ranking, Run, Score
from pytest_specdec.workloads.workload import Request, Workload


@dataclass(frozen=True)
class Description:
    """What a loaded engine says of itself.

    `vocabulary`: number of token ids that the tokenizer really has, or the model's where there is no tokenizer.
    `context`: longest prompt plus output, in tokens. `versions`: package name to version. `device`: "cpu" or the GPU's
    name. `pid`: the worker's process id, None for an engine without a process. `parks`: whether parking gives memory
    up, so that the engine cannot run until it is woken. `configuration`: every setting as it is after loading, by the
    engine's own names. `details`: what else it says, such as `eos_token_ids`, and as
    `keeps_ends` whether the EOS or stop token that ended an answer is among its ids.
    """

    vocabulary: int
    context: int
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None
    parks: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)

    def withheld(self, request: Request) -> tuple[int, list[int]]:
        """How many tokens at the start of an answer must not be ends, and which ids are ends."""
        ends = request.stop_tokens(self.details.get("eos_token_ids") or ())
        return request.min_tokens if ends else 0, sorted(ends)


class Engine(Protocol):
    """A loaded engine. Every method raises EngineError, and EngineDied when the engine's process is gone."""

    spec: EngineSpec
    description: Description

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text by the target's tokenizer, special tokens added as the tokenizer says."""

    def encode_messages(self, conversations: Sequence[Sequence[Mapping[str, str]]], **template: Any) -> list[list[int]]:
        """Token ids of each conversation by the target's chat template, open for the assistant's answer.

        A message has `role` and `content`; `template`: values that the template knows by name. Raises EngineError where
        the target has no chat template.
        """

    def decode(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
        """The text of each output as it follows its prompt; None where no tokenizer tells it.

        Special tokens are left out unless the request says `skip_special_tokens = false`.
        """

    def prepare(self, workload: Workload) -> None:
        """Send the requests and the moments at which they are due; nothing is decoded yet."""

    def run(self) -> None:
        """Decode what was prepared, each request once it is due. This call, and nothing else, is timed."""

    def collect(self) -> Run:
        """Fetch the generations and counters of the last run."""

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        """Rate each emitted token by one forward pass of this engine's model over prompt + output.

        Where `min_tokens` withholds an end, tokens are rated among the others. An engine may have `score_in_steps`
        besides, which takes the tokens of a step of verification and how many outputs are under way, and rates so.
        """

    def rank(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], most: int
    ) -> tuple[tuple[Ranking, ...], ...] | None:
        """The `most` highest logits at each emitted token, of all tokens; None where the engine does not tell them."""

    def park(self) -> None:
        """Give the device's memory up, but stay loaded."""

    def wake(self) -> None:
        """Undo `park`."""

    def close(self) -> None:
        """End the engine and everything it started; safe to call twice."""


def one_pass(engine: Engine, workload: Workload) -> Run:
    """One untimed pass."""
    engine.prepare(workload)
    engine.run()
    return collect(engine)


HAS_RUN = "_specdec_has_run"


def collect(engine: Engine) -> Run:
    """The last run. Raises EngineError where the target alone has drafted: nothing can be compared with that."""
    run = replace(engine.collect(), first=not getattr(engine, HAS_RUN, False))
    setattr(engine, HAS_RUN, True)
    if engine.spec.speculates or run.speculation is None:
        return run
    if drafted := run.speculation.draft_tokens:
        raise EngineError(
            f"the baseline drafted {drafted} tokens: the target alone must not speculate; look for speculation in its "
            "options, its checkpoint, its command or the server at its url"
        )
    return replace(run, speculation=None, counted_alone=True)
