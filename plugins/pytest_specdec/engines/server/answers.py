"""An answer as it came, a stream of server-sent events, becomes a generation; what is wrong with it, its error.

An answer is whole when its status is 200, its stream ended as the protocol says, its model is the one that was asked
for, it gave token ids, and the server's own count of them agrees. What the server counted over a run stands on its
Prometheus page: exact names, all label sets added up, differences.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pytest_specdec.engines.server.client import SHOWN, Exchange
from pytest_specdec.engines.server.dialects import CHOICE, Counters, Dialect, found_at
from pytest_specdec.engines.vllm import Rating
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Chunk, Generation, Score, Speculation
from pytest_specdec.workloads.workload import Request

GOOD = 200
DONE = "[DONE]"


class Event(NamedTuple):
    """One event: when its last byte came, its name (None for an ordinary one), and its data."""

    at_s: float
    name: str | None
    data: str


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[Event]:
    """The events of a stream that came in these pieces; what is left of an unfinished one is passed over."""
    left, said = b"", {}  # type: bytes, dict[str, list[str]]
    for at_s, piece in pieces:
        *whole, left = (left + piece).split(b"\n")
        for line in (raw.rstrip(b"\r").decode("utf-8", "replace") for raw in whole):
            name, _, value = line.partition(":")
            if line:
                said.setdefault(name, []).append(value.removeprefix(" "))
                continue
            if said.keys() & {"data", "event"}:  # else it is a comment
                yield Event(at_s, said.get("event", [None])[-1], "\n".join(said.get("data", ())))
            said = {}


@dataclass
class Answer:
    """What one exchange said, read once. `error_status`: an error's HTTP status, in a stream the one that is told."""

    request: Request
    exchange: Exchange
    began: float
    model: str
    dialect: Dialect
    streamed: bool = True
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    prompt_ids: tuple[int, ...] | None = None
    text: str | None = None
    channels: dict[str, str] = field(default_factory=dict)
    finish_reason: str | None = None
    counted: int | None = None
    counted_prompt: int | None = None
    cached: int | None = None
    told: Speculation | None = None
    error: str | None = None
    error_status: int | None = None
    _done: bool = False
    _step: Any = None

    def read(self) -> Answer:
        """Go through what came. Returns itself."""
        if self.exchange.status not in (None, GOOD):
            self.error = f"HTTP {self.exchange.status}: {_message(self.exchange.answer)}"
            self.error_status = self.exchange.status
            return self
        for event in self._events():
            self._take(event)
        fault = self.exchange.fault and f"{self.exchange.fault} after {len(self.token_ids)} tokens"
        self.error = self.error or fault or self._missing()
        return self

    def _events(self) -> Iterable[Event]:
        if self.streamed:
            return events(self.exchange.pieces)
        whole = [] if self.exchange.fault else self.exchange.pieces[-1:]
        return [Event(at_s, None, self.exchange.answer.decode("utf-8", "replace")) for at_s, _ in whole]

    def generation(self) -> Generation:
        """As the rest of the package knows it; times are seconds since the run began."""
        exchange, dialect = self.exchange, self.dialect
        tells_logprobs = dialect.logprobs_at is not None and exchange.path == dialect.completions.path
        asked_logprobs = tells_logprobs and self.request.sampling.get("logprobs") is not None
        return Generation(
            prompt_ids=self.request.prompt_ids if self.prompt_ids is None else self.prompt_ids,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            chunks=tuple(self.chunks),
            text=self.text,
            channels=tuple(sorted(self.channels.items())) or None,
            started_s=None if exchange.sent is None else exchange.sent - self.began,
            scheduled_s=exchange.due,
            error=self.error,
            cached_tokens=self.cached,
            logprobs=tuple(self.logprobs) if asked_logprobs else None,
        )

    def _take(self, event: Event) -> None:
        if event.data == DONE:
            self._done = True
            return
        try:
            value = json.loads(event.data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._fault(f"an event that is no JSON object: {event.data[:SHOWN]}")
            return
        if event.name == "error" or "error" in value:
            self._fault(f"the server broke off: {_message(event.data.encode())}")
            self.error_status = found_at(value, ("error", "code"))
        else:
            self._take_value(event.at_s, value)

    def _take_value(self, at_s: float, value: dict[str, Any]) -> None:
        named = value.get("model")
        if named is not None and named != self.model:
            self._fault(f"answered by the model {named!r}, not by {self.model!r} that was asked")
        prompts = [ids for path in self.dialect.prompt_ids_at if (ids := found_at(value, path))]
        if prompts and self.prompt_ids is None:
            self.prompt_ids = tuple(prompts[0])
        ids = self._new_of(found_at(value, self.dialect.ids_at) or [], value)
        if ids:
            self.token_ids += ids
            self._take_chunk(at_s, len(ids), found_at(value, self.dialect.step_at or ("no step",)))
        self.logprobs += found_at(value, self.dialect.logprobs_at or ("no path",)) or []
        self._take_text(found_at(value, (*CHOICE, "text")), value.get("content"), value.get("text"))
        self._take_channels(found_at(value, (*CHOICE, "delta")) or {})
        reason = found_at(value, self.dialect.finish_at)
        if reason and reason != "none":
            self.finish_reason = self.dialect.renamed.get(reason, reason)
        self._take_counts(value)

    def _new_of(self, ids: list[int], value: dict[str, Any]) -> list[int]:
        """Those that no event brought before: SGLang tells all, and all text, unless it streams increments."""
        arrived, counted = len(self.token_ids), found_at(value, self.dialect.completion_tokens_at)
        tells_all = self.dialect.completions.sampling is not None and counted is not None
        if not (ids and tells_all and arrived + len(ids) > counted):
            return ids
        if ids[:arrived] != self.token_ids:
            self._fault(f"the stream told {self.token_ids} first, and then {ids[:arrived]}"[:SHOWN])
        self.text = None
        return ids[arrived:]

    def _take_chunk(self, at_s: float, tokens: int, step: Any) -> None:
        """When tokens came; those of one step are one chunk. A whole answer does not tell."""
        if step is not None and step == self._step:
            tokens += self.chunks.pop().tokens
        self._step = step
        self.chunks += [Chunk(at_s - self.began, tokens)] if self.streamed else []

    def _take_text(self, *places: Any) -> None:
        """Chat has none that is plain: a parser may have taken a part of it."""
        for text in places:
            if isinstance(text, str) and self.dialect.asks.get("detokenize", True):
                self.text = (self.text or "") + text

    def _take_channels(self, delta: Mapping[str, Any]) -> None:
        """What chat says, as the server's parsers part it; reasoning has two names, and some servers give both."""
        said = {"content": delta.get("content"), "reasoning": delta.get("reasoning") or delta.get("reasoning_content")}
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            said |= {f"tool {call.get('index', 0)}, {part}": function.get(part) for part in ("name", "arguments")}
        for channel, text in said.items():
            if isinstance(text, str) and text:
                self.channels[channel] = self.channels.get(channel, "") + text

    def _take_counts(self, value: dict[str, Any]) -> None:
        dialect = self.dialect
        counts = {"counted": dialect.completion_tokens_at, "counted_prompt": dialect.prompt_tokens_at}
        for name, path in (*counts.items(), ("cached", dialect.cached_tokens_at)):
            if (count := found_at(value, path)) is not None:
                setattr(self, name, int(count))
        told = {name: found_at(value, path) for name, path in dialect.told.items()}
        steps = told.pop("steps", None) or []
        if told and None not in told.values():
            positions = tuple(sum(steps[accepted:]) for accepted in range(1, len(steps)))
            self.told = Speculation(**told, accepted_per_position=positions)

    def _fault(self, why: str) -> None:
        self.error = self.error or why

    def _missing(self) -> str | None:
        arrived = len(self.token_ids)
        if self.finish_reason is None or (self.streamed and self.dialect.ends_with_done and not self._done):
            return f"the stream was cut off after {arrived} tokens: no end was said"
        if not arrived and self.counted:
            asked = f"asked by {json.dumps(dict(self.dialect.asks))}, protocol {self.dialect.name!r}"
            return f"no token ids in an answer of {self.counted} tokens: the server must tell them ({asked})"
        if self.counted is None:
            return "the server did not count its tokens (usage)"
        if self.counted != arrived:
            remedy = "; if its stream leaves some out, say server['stream'] = False" if arrived < self.counted else ""
            return f"{arrived} token ids arrived, but the server counts {self.counted} (usage){remedy}"
        if self.prompt_ids is None and self.counted_prompt not in (None, len(self.request.prompt_ids)):
            return f"{len(self.request.prompt_ids)} prompt tokens were sent, the server counts {self.counted_prompt}"
        return None


def _message(body: bytes) -> str:
    plain = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(plain)
    except ValueError:
        return plain[:SHOWN] or "no words"
    for path in (("error", "message"), ("message",), ("detail",), ("error",)):
        found = found_at(value, path)
        if isinstance(found, str):
            return found[:SHOWN]
    return plain[:SHOWN]


class PromptRating(Rating):
    """One output to be rated by a server, among the best tokens of each place of a prompt."""

    def body(self, model: str) -> dict[str, Any]:
        """What is asked."""
        asked = {"model": model, "prompt": self.ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": self.best}
        forced = {"logprobs": self.best, "allowed_token_ids": self.forced, "return_tokens_as_token_ids": True}
        return asked | (forced if self.forced else {})

    def scores(self, answer: Mapping[str, Any], raw: bool) -> tuple[Score, ...]:
        """Read the answer. `raw`: it tells logits, not logprobs. Raises EngineError if it rates not what was asked."""
        rows = self._rows(answer)
        if len(rows) != len(self.output):
            raise EngineError(f"{len(rows)} ratings for {len(self.output)} tokens: {NO_RATING}")
        told = ([(token, row[token]), *row.items()] for token, row in zip(self.output, rows, strict=True))
        rated = (Score(*self.row(at, each)) for at, each in enumerate(told))
        return tuple(each if raw else replace(each, top=None) for each in rated)

    def _rows(self, answer: Mapping[str, Any]) -> list[dict[int, float]]:
        """For each token the values that are told there, by id."""
        choice = answer["choices"][0]
        count = len(self.output) - len(self.forced)
        told = (choice.get("prompt_logprobs") or [])[-count:] if count else []
        rows = [{int(token): item["logprob"] for token, item in row.items()} for row in told]
        best = choice["logprobs"]["top_logprobs"][:1] if self.forced else []
        return rows + [{int(token.removeprefix("token_id:")): value for token, value in row.items()} for row in best]


class NativeRating(PromptRating):
    """The same, of SGLang: the last token is rated where the next one would be, all others in the prompt."""

    def body(self, model: str) -> dict[str, Any]:
        """What is asked, from the prompt's last token on, of which nothing is told."""
        return {
            "input_ids": [*self.prompt, *self.output[:-1]],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(self.prompt) - 1,
            "top_logprobs_num": self.best,
            "token_ids_logprob": [self.output[-1]],
        }

    def _rows(self, answer: Mapping[str, Any]) -> list[dict[int, float]]:
        told = answer["meta_info"]
        own = [[each] for each in told["input_token_logprobs"][1:]] + told["output_token_ids_logprobs"]
        best = [*told["input_top_logprobs"][1:], *told["output_top_logprobs"]]
        return [{token: value for value, token, *_ in (*top, *each)} for top, each in zip(best, own, strict=True)]


NO_RATING = (
    "the endpoint does not rate prompts (prompt_logprobs); name a reference in this process, "
    'e.g. @pytest.mark.specdec(reference="vllm") or reference="transformers"'
)


TOTALS = ("drafts", "draft_tokens", "accepted_tokens", "prefix_cache_hits", "preemptions")
Counted: TypeAlias = Mapping[str | int, int]
"""Of TOTALS those that a server has, and for each position of drafts how many were accepted there."""


def read_counters(page: str, names: Counters) -> Counted:
    """One reading of a server's page."""
    samples = _samples(page)
    found = {name: _find(samples, getattr(names, name)) for name in TOTALS}
    counted: Counter[str | int] = Counter()
    counted.update({name: sum(int(each.value) for each in named) for name, named in found.items() if named})
    for sample in _find(samples, names.per_position):
        if "position" in sample.labels:
            counted[int(sample.labels["position"])] += int(sample.value)
    return counted


def difference(after: Counted, before: Counted) -> Counted:
    """What each counter that there is has moved by between two readings."""
    return {each: count - before.get(each, 0) for each, count in after.items()}


def speculation_of(moved: Counted) -> Speculation | None:
    """The speculation between two readings; None where the server does not tell drafts and tokens."""
    if not moved.keys() >= {*TOTALS[:3]}:
        return None
    positions = max((at for at in moved if isinstance(at, int)), default=-1) + 1
    by_position = tuple(moved.get(at, 0) for at in range(positions))
    return Speculation(moved["drafts"], moved["draft_tokens"], moved["accepted_tokens"], by_position)


def _samples(page: str) -> list[Sample]:
    try:
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except ValueError:
        return []
    return [sample for sample in samples if math.isfinite(sample.value)]


def _find(samples: Iterable[Sample], name: str) -> list[Sample]:
    """Those of this name, or where there are none those of the name that it had before OpenMetrics."""
    found = [[sample for sample in samples if sample.name == each] for each in (name, name.removesuffix("_total"))]
    return next(filter(None, found), []) if name else []
