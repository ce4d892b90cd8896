"""An engine behind an HTTP endpoint: started here or already running, asked over the wire, judged like any other.

Requests are built before the clock runs, answers are read after. A request that fails is that request's error
(`Generation.error`) and the others count; an engine error is what leaves nothing to judge.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_specdec.engines.engine import Description, Engine
from pytest_specdec.engines.model_files import ModelFacts
from pytest_specdec.engines.server.answers import (
    NO_RATING,
    Answer,
    Counted,
    NativeRating,
    PromptRating,
    difference,
    read_counters,
    speculation_of,
)
from pytest_specdec.engines.server.client import SHOWN, Client, Exchange
from pytest_specdec.engines.server.dialects import VLLM, found_at
from pytest_specdec.engines.server.plan import ServerPlan
from pytest_specdec.engines.server.process import HOST, ServerProcess, command_line, fill, free_port
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.vllm import ADAPTER, CPU_ENVIRONMENT
from pytest_specdec.errors import EngineError, Unsupported
from pytest_specdec.generation import Run, Score, Speculation
from pytest_specdec.hardware import gpus
from pytest_specdec.workloads.workload import Request, Workload

READY_SECONDS = 60.0
NOTHING_DRAFTED = Speculation(0, 0, 0)  # vLLM's page has counters of drafts only where it speculates
DYING_SECONDS = 1.0
RATINGS = {"prompt_logprobs": PromptRating, "input_top_logprobs": NativeRating}


class ServedEngine(Engine):
    """A server, as an engine: it keeps what it holds, so two must fit beside each other, and ranks nothing."""

    def __init__(self, spec: EngineSpec, load_timeout: float, timeout: float, resolve: Callable[[str], str]) -> None:
        """Start the server or find it. Raises EngineError, ConfigurationError.

        `load_timeout`: seconds until it must be ready. `timeout`: seconds for each request. `resolve` turns a model
        reference into what a server can open, which is then this engine's `folder`.
        """
        self.spec = spec
        self._plan = ServerPlan(**spec.server)
        self.folder = resolve(spec.target)
        self._timeout = self._plan.request_timeout or timeout
        self._process: ServerProcess | None = None
        self._workload: Workload | None = None
        self._exchanges: list[Exchange] = []
        self._span = (0.0, 0.0)
        places = _places(spec, self.folder, resolve)
        self._metrics = fill(self._plan.metrics or self._plan.dialect.counters.path, places)
        url = self._plan.url or f"http://{HOST}:{places['port']}"
        self._client = Client(url, self._timeout, self._plan.headers())
        try:
            self._open(places, load_timeout)
        except BaseException:
            self.close()
            raise

    def _open(self, places: Mapping[str, object], load_timeout: float) -> None:
        self._refuse_unnamed(self.spec.adapter)
        if self._plan.url is None:
            self._start(places, load_timeout)
        listed = self._models()
        self._model = self._find_model([str(each["id"]) for each in listed])
        self.description = self._describe({each["id"]: each for each in listed})
        self._before = self._read_counters()

    @property
    def url(self) -> str:
        """Where the server answers."""
        return self._client.url

    def _start(self, places: Mapping[str, object], load_timeout: float) -> None:
        on_cpu = not gpus().visible
        command = command_line(self._plan, self.spec, places, on_cpu)
        environment = {**self._plan.dialect.environment, **(CPU_ENVIRONMENT if on_cpu else {}), **self.spec.environment}
        self._process = ServerProcess(command, environment, self.spec.label)
        self._process.wait_until(self._refuse_unready, load_timeout)

    def _refuse_unready(self) -> None:
        self._client.text(self._plan.ready, timeout=READY_SECONDS)
        self._models()

    def _models(self) -> list[dict[str, Any]]:
        """What the server lists. Raises EngineError with what it says instead, or why it says nothing."""
        page = self._client.text("/v1/models", timeout=READY_SECONDS)
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            if listed := json.loads(page).get("data"):
                return [dict(each) for each in listed]
        raise EngineError(f"{self._client.url}/v1/models lists no model: {page[:SHOWN]}")

    def _find_model(self, served: Sequence[str]) -> str:
        named = self._plan.model or (ADAPTER if self.spec.adapter else None)
        wanted = [named] if named else [self.folder, self.spec.target, *(served if len(served) == 1 else [])]
        for name in wanted:
            if name in served:
                self._at_its_word = name not in wanted[:2] and not named
                return name
        raise EngineError(
            f"{self._client.url} serves {', '.join(served)}, not {named or self.spec.target}: "
            "name one of them as server['model']"
        )

    def _refuse_unnamed(self, name: object) -> None:
        """A request that names no model is answered by the base model, whatever else is served. Raises EngineError."""
        if name and not self._plan.dialect.names_model:
            raise EngineError(
                f"protocol {self._plan.dialect.name!r} asks for a server's only base model, not for {name}: "
                "an adapter has not been run here; name the base model, without options['adapter']"
            )

    def _describe(self, models: Mapping[str, Any]) -> Description:
        listed = models[self._model]
        bases = [each for each in models.values() if not each.get("parent")]
        self._refuse_unnamed(bases != [listed] and listed["id"])
        base = models.get(listed.get("parent"), listed)
        self._adapter = listed.get("root") if base is not listed else None
        facts = ModelFacts.of(self.folder)
        told = base.get("max_model_len") or found_at(base, ("meta", "n_ctx"))
        context = self._plan.context or told or self.spec.max_model_len or facts.context
        vocabulary = self._plan.vocabulary or facts.vocabulary
        if not self.spec.speculates and vocabulary is None:
            raise EngineError(
                f"{self.spec.target} is no folder with a config.json, so the number of its token ids is not known: "
                "say server['vocabulary'] and server['eos_token_ids']"
            )
        details = {
            "model_vocabulary": facts.model_vocabulary,
            "eos_token_ids": list(self._plan.eos_token_ids or facts.eos_token_ids) or None,
            "keeps_ends": self._plan.keeps_ends,
            "dtype": self._dtype(facts),
            "protocol": self._plan.dialect.name,
            "served_model": self._model,
            "taken_at_its_word": self._model if self._at_its_word else None,
            ADAPTER: self._adapter,
        }
        dialect, about, visible = self._plan.dialect, self._about(), gpus().visible
        version = about.get(dialect.version[1]) if dialect.version else None
        if dialect.chain is not None and dialect.chain(about, self.spec.gamma or 0):
            details["counting"] = "vllm"
        return Description(
            vocabulary=vocabulary or 0,
            context=int(context or 0),
            device="served" if self._process is None else visible[0].name if visible else "cpu",
            versions={dialect.name: str(version)} if version else {},
            pid=None if self._process is None else self._process.group,
            details={name: value for name, value in details.items() if value is not None},
            configuration={ADAPTER: self._adapter} if "parent" in listed else {},
        )

    def _dtype(self, facts: ModelFacts) -> str | None:
        asked = str(self.spec.options.get("dtype", self.spec.dtype))
        ours = self._process is not None and self._plan.command is None
        return asked if ours and asked != "auto" else facts.dtype

    def _about(self) -> Mapping[str, Any]:
        version = self._plan.dialect.version
        try:
            told = self._client.json(version[0]) if version else {}
        except EngineError:
            return {}
        return told if isinstance(told, Mapping) else {}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, by the server's own tokenizer."""
        return [list(self._ask_tokenizer("/tokenize", prompt=text)["tokens"]) for text in texts]

    def encode_messages(self, conversations: Sequence[Sequence[Mapping[str, str]]], **template: Any) -> list[list[int]]:
        """Token ids of each conversation by the server's own chat template, ready for the assistant's answer."""
        same: dict[str, Any] = {"chat_template_kwargs": template} if template else {}
        asked = ([dict(each) for each in talk] for talk in conversations)
        return [list(self._ask_tokenizer("/tokenize", messages=each, **same)["tokens"]) for each in asked]

    def decode(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
        """Nothing: a server's own decoding does not say which special tokens it leaves out."""
        return [None] * len(outputs)

    def _ask_tokenizer(self, path: str, **asked: Any) -> Any:
        if not self._plan.dialect.tokenize:
            raise EngineError(
                f"a server of protocol {self._plan.dialect.name!r} encodes no text: give prompts as ids, "
                'or name a reference in this process, e.g. reference="vllm"'
            )
        return self._client.json(path, {"model": self._model, **asked})

    def prepare(self, workload: Workload) -> None:
        """Build the requests, open connections, and read the counters."""
        self._workload = workload
        dues = workload.arrivals_s or (None,) * len(workload.requests)
        pairs = zip(workload.requests, dues, strict=True)
        self._exchanges = [Exchange(self._plan.route(request).path, self._body(request), due) for request, due in pairs]
        counts = Counter(exchange.path for exchange in self._exchanges)
        routes = ", ".join(f"{path} ({count})" if len(counts) > 1 else path for path, count in counts.items())
        self.description = replace(self.description, details={**self.description.details, "endpoint": routes})
        if self._plan.dialect.reset and not workload.keeps_prefix_cache:
            self._empty_prefix_cache(self._plan.dialect.reset)
        self._client.warm(self._plan.ready, min(workload.concurrency, len(workload.requests)))
        self._before = self._read_counters()

    def _empty_prefix_cache(self, path: str) -> None:
        """Raises EngineError if it is refused where no counter of hits would show that."""
        try:
            self._client.text(path, {})
        except EngineError as error:
            if not self._plan.dialect.counters.prefix_cache_hits:
                remedy = 'ask it for nothing else meanwhile, or say prefix_cache = "keep" in the scenario'
                raise EngineError(f"the prefix cache was not emptied: {error}; {remedy}") from None

    def _body(self, request: Request) -> bytes:
        ids = list(request.prompt_ids)
        text = str(self._ask_tokenizer("/detokenize", tokens=ids)["prompt"]) if self._plan.as_text else None
        return json.dumps(self._plan.body(request, text, self._model)).encode()

    def run(self) -> None:
        """Send and receive. Raises EngineDied if the server ends meanwhile."""
        assert self._workload is not None, "run() before prepare()"
        self._span = self._client.run(self._exchanges, self._workload.concurrency, self._timeout)
        if self._process is not None:
            failed = any(exchange.fault for exchange in self._exchanges)
            self._process.refuse_dead("decoding", DYING_SECONDS if failed else 0.0)

    def collect(self) -> Run:
        """Read the answers. Raises EngineError if there is nothing to judge, Unsupported if the server refuses all."""
        began, ended = self._span
        answers = self._answers()
        self._refuse_failure(answers)
        moved = difference(self._read_counters(), self._before)
        unrated: dict[str, Any] = {"logprobs": None} if self._tells_logits else {}
        return Run(
            tuple(replace(answer.generation(), **unrated) for answer in answers),
            self._speculation(answers, moved),
            ended - began,
            moved.get("prefix_cache_hits"),
            sent_apart=True,
            preemptions=moved.get("preemptions"),
        )

    @property
    def _tells_logits(self) -> bool:
        """Where the target alone is rated, it tells logits in the place of log-probabilities."""
        ours = self._process is not None and not self.spec.speculates and self._plan.dialect is VLLM
        return ours if self._plan.raw_logits is None else self._plan.raw_logits

    def _answers(self) -> list[Answer]:
        assert self._workload is not None, "collect() before run()"
        pairs = zip(self._workload.requests, self._exchanges, strict=True)
        known = (self._span[0], self._model, self._plan.dialect, self._plan.stream)
        return [Answer(request, each, *known).read() for request, each in pairs]

    def _refuse_failure(self, answers: Sequence[Answer]) -> None:
        vetted = self._plan.dialect.refusals  # words by which the server says, as the client's error, that it cannot
        if answers and all(
            answer.error_status in range(400, 500) and any(re.search(each, answer.error or "") for each in vetted)
            for answer in answers
        ):
            raise Unsupported(f"server {self.spec.label} refuses: {answers[0].error}")
        failed = sum(answer.error is not None for answer in answers)
        if failed == len(answers) or (failed and not self.spec.speculates):
            raise EngineError(f"server {self.spec.label} at {self._client.url}: {_failures(answers)}")

    def _read_counters(self) -> Counted:
        try:
            page = self._client.text(self._metrics)
        except EngineError:
            page = ""
        return read_counters(page, self._plan.dialect.counters)

    def _speculation(self, answers: Sequence[Answer], moved: Counted) -> Speculation | None:
        counted = self._sum_answers(answers) if self._plan.dialect.told else self._counted(moved)
        if counted is None and self.spec.speculates:
            raise EngineError(
                f"server {self.spec.label} does not tell what it drafted ({self._counter_source()}): without that it "
                "cannot be known whether it speculated; start it with speculation (vLLM: --speculative-config), switch "
                f"its metrics on, or say server['metrics']; {_failures(answers)}"
            )
        return counted

    def _sum_answers(self, answers: Sequence[Answer]) -> Speculation | None:
        """Their sums, if each tells; one of a single token took no step of verification, so nothing is told of it.

        A position at which nothing was accepted is not told: it counts none.
        """
        stepped = [answer for answer in answers if answer.error is None and (answer.told or len(answer.token_ids) > 1)]
        counted = [answer.told for answer in stepped if answer.told is not None]
        tells = len(counted) == len(stepped) and (counted or self.spec.speculates)
        by_position = [each.accepted_per_position or not each.accepted_tokens for each in counted]
        positions = self.spec.gamma or 0 if counted and all(by_position) else 0
        return sum(counted, Speculation(0, 0, 0, (0,) * positions)) if tells else None

    def _counted(self, moved: Counted) -> Speculation | None:
        if not self._plan.dialect.counters.drafts and "draft_tokens" in moved and self.spec.gamma:
            return speculation_of({**moved, "drafts": -(-moved["draft_tokens"] // self.spec.gamma)})
        silent = not self.spec.speculates and "draft_tokens" not in moved and "prefix_cache_hits" in moved
        return NOTHING_DRAFTED if silent else speculation_of(moved)

    def _counter_source(self) -> str:
        dialect = self._plan.dialect
        if dialect.told:
            return f"asked by {json.dumps(dict(dialect.asks))}"
        names = filter(None, (dialect.counters.drafts, dialect.counters.draft_tokens))
        return f"no {' and '.join(names)} at {self._metrics}"

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        """Rate each emitted token by the server's log-probabilities of a prompt."""
        if not self._plan.dialect.rates:
            raise EngineError(f"server {self.spec.label}, protocol {self._plan.dialect.name!r}: {NO_RATING}")
        kind, context = RATINGS[self._plan.dialect.rates], self.description.context
        asked = [
            kind(list(request.prompt_ids), list(output), self.description.withheld(request), context, most=2)
            for request, output in zip(requests, outputs, strict=True)
        ]
        bodies = [rating.body(self._model) for rating in asked if rating.output]
        at_once = 1 if self._adapter else len(bodies) or 1  # vLLM on a CPU rates one adapted request in a step
        parts = [bodies[begin : begin + at_once] for begin in range(0, len(bodies), at_once)]
        path = self._plan.dialect.completions.path
        told = iter([each for part in parts for each in self._client.json_of_each(path, part)])
        return tuple(rating.scores(next(told), self._tells_logits) if rating.output else () for rating in asked)

    def close(self) -> None:
        """Close the connections, and end a server that was started here."""
        try:
            self._client.close()
        finally:
            if self._process is not None:
                self._process.close()


def _failures(answers: Sequence[Answer]) -> str:
    errors = [answer.error for answer in answers if answer.error is not None]
    first = f"; the first: {errors[0]}" if errors else ""
    return f"{len(errors)} of {len(answers)} requests failed{first}"


def _places(spec: EngineSpec, folder: str, resolve: Callable[[str], str]) -> dict[str, object]:
    return {
        "model": folder,
        "draft": resolve(spec.draft) if spec.draft else "",
        "host": HOST,
        "port": free_port(),
        "metrics_port": free_port(),
        "method": spec.method,
        "gamma": "" if spec.gamma is None else spec.gamma,
    }
