"""An answer as it came, a stream of server-sent events, becomes a generation; what is wrong with it, its error.

An answer is whole when its status is 200, its stream ended as the protocol says, its model is the one that was asked
for, it gave token ids, and the server's own count of them agrees with what arrived. Anything else is an error of this
one request: its words go into `Generation.error`.

What the server counted over a run stands on its Prometheus page: exact names, all label sets added up, differences.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pytest_specdec.engines.server.client import Exchange
from pytest_specdec.engines.server.dialects import CHOICE, Counters, Dialect, Path, Told, found_at
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Chunk, Generation, Score, Speculation
from pytest_specdec.workloads.workload import Request

GOOD = 200
DONE = "[DONE]"
SHOWN = 300


@dataclass(frozen=True)
class Event:
    """One event: when its last byte came, its name (None for an ordinary one), and its data."""

    at_s: float
    name: str | None
    data: str

    @classmethod
    def of(cls, at_s: float, lines: Iterable[str]) -> Event | None:
        """From its lines; None for a comment."""
        fields = [(name, value.removeprefix(" ")) for name, _, value in (line.partition(":") for line in lines)]
        data = [value for name, value in fields if name == "data"]
        named = [value for name, value in fields if name == "event"]
        return cls(at_s, named[-1] if named else None, "\n".join(data)) if data or named else None

    def value(self) -> dict[str, Any]:
        """The data as JSON. Raises ValueError."""
        value = json.loads(self.data)
        if not isinstance(value, dict):
            raise ValueError(f"an event that is no JSON object: {self.data[:80]}")
        return value


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[Event]:
    """The events of a stream that came in these pieces; what is left of an unfinished one is passed over."""
    left = b""
    lines: list[str] = []
    for at_s, piece in pieces:
        *whole, left = (left + piece).split(b"\n")
        for raw in whole:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line:
                lines.append(line)
                continue
            if event := Event.of(at_s, lines):
                yield event
            lines = []


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
        self.error = self.error or self.exchange.fault or self._missing()
        if self.exchange.fault and self.error == self.exchange.fault:
            self.error = f"{self.error} after {len(self.token_ids)} tokens"
        return self

    def _events(self) -> Iterable[Event]:
        """The stream's; a whole answer is one event, unless it was broken off."""
        if self.streamed:
            return events(self.exchange.pieces)
        whole = [] if self.exchange.fault else self.exchange.pieces[-1:]
        return [Event(at_s, None, self.exchange.answer.decode("utf-8", "replace")) for at_s, _ in whole]

    def generation(self) -> Generation:
        """As the rest of the package knows it; times are seconds since the run began."""
        exchange = self.exchange
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
            logprobs=tuple(self.logprobs) if self._asked_logprobs else None,
        )

    @property
    def _asked_logprobs(self) -> bool:
        asked = self.request.sampling.get("logprobs") is not None
        return asked and self.dialect.logprobs_at is not None and self.exchange.path == self.dialect.completions.path

    def _take(self, event: Event) -> None:
        if event.data == DONE:
            self._done = True
            return
        try:
            value = event.value()
        except ValueError:
            self._fault(f"an event that is not JSON: {event.data[:SHOWN]}")
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
        for path in self.dialect.prompt_ids_at:
            self._take_prompt(found_at(value, path))
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

    def _take_prompt(self, ids: Any) -> None:
        if ids and self.prompt_ids is None:
            self.prompt_ids = tuple(ids)

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
        counted = found_at(value, self.dialect.completion_tokens_at)
        self.counted = self.counted if counted is None else int(counted)
        prompt = found_at(value, self.dialect.prompt_tokens_at)
        self.counted_prompt = self.counted_prompt if prompt is None else int(prompt)
        cached = found_at(value, self.dialect.cached_tokens_at)
        self.cached = self.cached if cached is None else int(cached)
        if self.dialect.told is not None:
            self._take_told(self.dialect.told, value)

    def _take_told(self, told: Told, value: dict[str, Any]) -> None:
        paths: Sequence[Path] = (told.drafts, told.draft_tokens, told.accepted_tokens)
        found = [found_at(value, path) for path in paths]
        steps = found_at(value, told.steps) or []
        positions = tuple(sum(steps[accepted:]) for accepted in range(1, len(steps)))
        self.told = Speculation(found[0], found[1], found[2], positions) if None not in found else self.told

    def _fault(self, why: str) -> None:
        self.error = self.error or why

    def _missing(self) -> str | None:
        """What a whole answer would have had."""
        arrived = len(self.token_ids)
        if self.finish_reason is None or (self.streamed and self.dialect.ends_with_done and not self._done):
            return f"the stream was cut off after {arrived} tokens: no end was said"
        if not arrived and self.counted:
            return f"no token ids in an answer of {self.counted} tokens: the server must tell them ({self._question()})"
        if self.counted is None:
            return "the server did not count its tokens (usage)"
        if self.counted != arrived:
            remedy = "; if its stream leaves some out, say server['stream'] = False" if arrived < self.counted else ""
            return f"{arrived} token ids arrived, but the server counts {self.counted} (usage){remedy}"
        if self.prompt_ids is None and self.counted_prompt not in (None, len(self.request.prompt_ids)):
            return f"{len(self.request.prompt_ids)} prompt tokens were sent, the server counts {self.counted_prompt}"
        return None

    def _question(self) -> str:
        return f"asked by {json.dumps(dict(self.dialect.asks))}, protocol {self.dialect.name!r}"


def _message(body: bytes) -> str:
    """The server's words: OpenAI's error message where there is one, else the beginning of the body."""
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


TOKEN_ID = "token_id:"


@dataclass(frozen=True)
class Rating:
    """One output to be rated. `withheld` ids are not permitted before token `until`. `raw`: logits, not logprobs."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    until: int
    withheld: frozenset[int]
    context: int
    raw: bool

    @property
    def forced(self) -> tuple[int, ...]:
        """The last token, where prompt and output fill the context."""
        return self.output[-1:] if len(self.prompt) + len(self.output) >= self.context else ()

    def body(self, model: str) -> dict[str, Any]:
        """What is asked: as many of the best tokens as leave two when the withheld ones are taken away."""
        best = 2 + (len(self.withheld) if self.until else 0)
        rated = self.output[: len(self.output) - len(self.forced)]
        asked = {
            "model": model,
            "prompt": [*self.prompt, *rated],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": best,
        }
        forced = {"logprobs": best, "allowed_token_ids": list(self.forced), "return_tokens_as_token_ids": True}
        return asked | (forced if self.forced else {})

    def scores(self, answer: Mapping[str, Any]) -> tuple[Score, ...]:
        """Read the answer. Raises EngineError if it does not rate what was asked."""
        choice = answer["choices"][0]
        count = len(self.output) - len(self.forced)
        told = (choice.get("prompt_logprobs") or [])[-count:] if count else []
        rows = [{int(token): item["logprob"] for token, item in row.items()} for row in told]
        if self.forced:
            best = choice["logprobs"]["top_logprobs"][0]
            rows.append({int(token.removeprefix(TOKEN_ID)): value for token, value in best.items()})
        if len(rows) != len(self.output):
            raise EngineError(f"{len(rows)} ratings for {len(self.output)} tokens: {NO_RATING}")
        return tuple(self._score(at, token, row) for at, (token, row) in enumerate(zip(self.output, rows, strict=True)))

    def _score(self, at: int, token: int, row: Mapping[int, float]) -> Score:
        permitted = {each: value for each, value in row.items() if not (at < self.until and each in self.withheld)}
        argmax, *others = sorted(permitted, key=lambda each: -permitted[each])
        top = permitted[argmax]
        return Score(
            top - row[token], top if self.raw else None, argmax, top - permitted[others[0]] if others else None
        )


class NativeRating(Rating):
    """The same, of SGLang: the last token is rated where the next one would be, all others in the prompt."""

    def body(self, model: str) -> dict[str, Any]:
        """What is asked, from the prompt's last token on, of which nothing is told."""
        return {
            "input_ids": [*self.prompt, *self.output[:-1]],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(self.prompt) - 1,
            "top_logprobs_num": 2 + (len(self.withheld) if self.until else 0),
            "token_ids_logprob": [self.output[-1]],
        }

    def scores(self, answer: Mapping[str, Any]) -> tuple[Score, ...]:
        """Read the answer. Raises EngineError if it does not rate what was asked."""
        told = answer["meta_info"]
        own = [[each] for each in told["input_token_logprobs"][1:]] + told["output_token_ids_logprobs"]
        best = [*told["input_top_logprobs"][1:], *told["output_top_logprobs"]]
        rows = [{token: value for value, token, *_ in (*top, *each)} for top, each in zip(best, own, strict=True)]
        if len(rows) != len(self.output):
            raise EngineError(f"{len(rows)} ratings for {len(self.output)} tokens: {NO_RATING}")
        return tuple(self._score(at, token, row) for at, (token, row) in enumerate(zip(self.output, rows, strict=True)))


NO_RATING = (
    "the endpoint does not rate prompts (prompt_logprobs); name a reference in this process, "
    'e.g. @pytest.mark.specdec(reference="vllm") or reference="transformers"'
)


@dataclass(frozen=True)
class Counted:
    """One reading. None: the page has no counter of that name."""

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    per_position: tuple[int, ...] = field(default=())
    prefix_cache_hits: int | None = None
    preemptions: int | None = None

    @classmethod
    def read(cls, page: str, names: Counters) -> Counted:
        """Take the counters of these names from a page."""
        samples = _samples(page)
        return cls(
            drafts=_total(samples, names.drafts),
            draft_tokens=_total(samples, names.draft_tokens),
            accepted_tokens=_total(samples, names.accepted_tokens),
            per_position=_by_position(samples, names.per_position),
            prefix_cache_hits=_total(samples, names.prefix_cache_hits),
            preemptions=_total(samples, names.preemptions),
        )

    def since(self, before: Counted) -> Speculation | None:
        """The speculation between two readings; None where the server does not tell drafts and tokens."""
        moved = [
            _difference(now, then)
            for now, then in (
                (self.drafts, before.drafts),
                (self.draft_tokens, before.draft_tokens),
                (self.accepted_tokens, before.accepted_tokens),
            )
        ]
        if None in moved:
            return None
        earlier = (*before.per_position, *(0,) * len(self.per_position))
        positions = tuple(now - then for now, then in zip(self.per_position, earlier, strict=False))
        return Speculation(moved[0] or 0, moved[1] or 0, moved[2] or 0, positions)

    def hits_since(self, before: Counted) -> int | None:
        """Prompt tokens found in the prefix cache between two readings."""
        return _difference(self.prefix_cache_hits, before.prefix_cache_hits)

    def preemptions_since(self, before: Counted) -> int | None:
        """Requests that gave up their place in the cache between two readings."""
        return _difference(self.preemptions, before.preemptions)


def _samples(page: str) -> list[Sample]:
    """The page's samples that are numbers; none where it is not Prometheus's text."""
    try:
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except ValueError:
        return []
    return [sample for sample in samples if math.isfinite(sample.value)]


def _find(samples: Iterable[Sample], names: Iterable[str]) -> list[Sample]:
    """The samples of the first of these names that there is."""
    found = ([sample for sample in samples if sample.name == name] for name in names)
    return next(filter(None, found), [])


def _total(samples: Iterable[Sample], names: tuple[str, ...]) -> int | None:
    named = _find(samples, names)
    return sum(int(sample.value) for sample in named) if named else None


def _by_position(samples: Iterable[Sample], names: tuple[str, ...]) -> tuple[int, ...]:
    counts: Counter[int] = Counter()
    for sample in _find(samples, names):
        if "position" in sample.labels:
            counts[int(sample.labels["position"])] += int(sample.value)
    return tuple(counts[at] for at in range(max(counts, default=-1) + 1))


def _difference(now: int | None, then: int | None) -> int | None:
    return None if now is None else now - (then or 0)
