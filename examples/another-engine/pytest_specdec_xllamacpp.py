"""llama.cpp in the process of pytest, by the package xllamacpp, as an engine of pytest-specdec.

    pytest --specdec-engine xllamacpp --specdec-target a.gguf --specdec-draft b.gguf --specdec-method draft-simple

Models are GGUF files, or named in `options={"gguf": {model: file}, "threads": 4}`. See docs/add-an-engine.md.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gguf
import xllamacpp

from pytest_specdec.engines.engine import Description, Engine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError, Unsupported
from pytest_specdec.generation import Chunk, Generation, Run, Score, Speculation
from pytest_specdec.workloads.workload import Request, Workload

CONTEXT, TURNS = 512, 4  # tokens, and requests that are answered at once
NOT_HAD = ("keeps_prefix_cache", "min_tokens", "stop_token_ids", "sampling")  # it would pass them over in silence
GREEDY = {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1, "verbose": True, "timings_per_token": True}
COUNTER = re.compile(r'^llamacpp:spec_decode_num_(\w+)_total(?:\{position="(\d+)"\})? (\d+)$', re.MULTILINE)


def pytest_specdec_start_engine(spec: EngineSpec) -> LlamaCpp | None:
    """Answer to the name xllamacpp."""
    return LlamaCpp(spec) if spec.backend == "xllamacpp" else None


class LlamaCpp(Engine):
    """One of llama.cpp's servers, asked without HTTP; park, wake and rank are those of Engine, which do nothing."""

    def __init__(self, spec: EngineSpec) -> None:
        """Load it. Raises EngineError, Unsupported."""
        self.spec = spec
        try:
            self._server = xllamacpp.Server(self._parameters())
        except RuntimeError as error:
            raise EngineError(f"llama.cpp does not load {spec.label}: {error}") from error
        told = gguf.GGUFReader(self._file(spec.target))
        ends = told.get_field("tokenizer.ggml.eos_token_id")
        details = {"eos_token_ids": [int(ends.contents())] if ends else [], "dtype": spec.dtype, "most_requests": TURNS}
        size, versions = len(told.get_field("tokenizer.ggml.tokens").data), {"xllamacpp": xllamacpp.__version__}
        self.description = Description(size, spec.max_model_len or CONTEXT, "cpu", versions, details=details)

    def _parameters(self) -> xllamacpp.CommonParams:
        asked, kinds = xllamacpp.CommonParams(), xllamacpp.common_speculative_type
        asked.model.path = self._file(self.spec.target)
        asked.endpoint_metrics, asked.verbosity = True, 1  # which is errors
        asked.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it computes in float16
        asked.n_parallel, asked.n_ctx = TURNS, TURNS * (self.spec.max_model_len or CONTEXT)
        asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = self.spec.options.get("threads", 1)
        kind = f"COMMON_SPECULATIVE_TYPE_{self.spec.method.upper().replace('-', '_')}"
        if not hasattr(kinds, kind):
            raise Unsupported(f"llama.cpp has no method {self.spec.method!r}")
        asked.speculative.types = [getattr(kinds, kind)]
        asked.speculative.ngram_simple.size_n = 3
        asked.speculative.draft.n_max = asked.speculative.ngram_simple.size_m = self.spec.gamma or 0
        asked.speculative.draft.mparams.path = self._file(self.spec.draft or "")
        for cache in (asked, asked.speculative.draft) if self.spec.dtype == "float32" else ():
            cache.cache_type_k = cache.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        return asked

    def _file(self, model: str) -> str:
        return str(self.spec.options.get("gguf", {}).get(model, model))

    def prepare(self, workload: Workload) -> None:
        """Note what is asked, and what was counted until now. Raises Unsupported."""
        asked = [key for key in NOT_HAD if any(getattr(each, key, None) for each in (workload, *workload.requests))]
        if asked:
            raise Unsupported(f"not had here: {', '.join(asked)}")
        self._workload, self._before = workload, self._count()

    def run(self) -> None:
        """As many requests at once as the workload says, in order, none before it is due."""
        self._began, dues = time.perf_counter(), self._workload.arrivals_s or (0.0,) * len(self._workload.requests)
        with ThreadPoolExecutor(self._workload.concurrency) as turns:
            self._answers = tuple(turns.map(self._answer, self._workload.requests, dues))
        self._seconds = time.perf_counter() - self._began

    def collect(self) -> Run:
        """The answers, and what was counted meanwhile."""
        counted = {name: now - self._before.get(name, 0) for name, now in self._count().items()}
        positions = tuple(counted[key] for key in sorted(key for key in counted if isinstance(key, int)))
        totals = (counted["drafts"], counted["draft_tokens"], counted["accepted_tokens"])
        return Run(self._answers, Speculation(*totals, positions), self._seconds)

    def _count(self) -> dict[str | int, int]:
        """What was drafted and accepted since it was loaded; positions by their number."""
        told = COUNTER.findall(self._server.handle_metrics())
        return {int(position) if position else name: int(count) for name, position, count in told}

    def _answer(self, request: Request, due: float) -> Generation:
        pieces: list[tuple[float, Any]] = []
        body = {**GREEDY, "prompt": list(request.prompt_ids), "max_tokens": request.max_tokens, "cache_prompt": False}
        body |= {"ignore_eos": request.ignore_eos, "stop": list(request.stop), "stream": True}
        time.sleep(max(0.0, self._began + due - time.perf_counter()))
        started = time.perf_counter()
        self._server.handle_completions(body, lambda piece: pieces.append((time.perf_counter() - self._began, piece)))
        told = [(at, piece) for at, piece in pieces if piece.get("__verbose", {}).get("tokens")]
        ids = [token for _, piece in told for token in piece["__verbose"]["tokens"]]
        last = pieces[-1][1] if pieces else {}
        came = [(piece["timings"]["predicted_ms"], at) for at, piece in told]  # llama.cpp's clock stands within a step
        counted = last.get("usage", {}).get("completion_tokens")
        return Generation(
            prompt_ids=request.prompt_ids,
            token_ids=tuple(ids),
            finish_reason=last["choices"][0]["finish_reason"] if counted == len(ids) else None,
            chunks=tuple(Chunk(dict(came)[step], tokens) for step, tokens in Counter(step for step, _ in came).items()),
            started_s=started - self._began,
            scheduled_s=due if self._workload.arrivals_s else None,
            error=None if counted == len(ids) else f"{len(ids)} of {counted} token ids came: {last}",
        )

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        """Each token by the log-probabilities after its prefix."""
        pairs = zip((request.prompt_ids for request in requests), outputs, strict=True)
        return tuple(tuple(self._rate([*ids, *out[:at]], out[at]) for at in range(len(out))) for ids, out in pairs)

    def _rate(self, prefix: list[int], token: int) -> Score:
        """By the best two, and by all where it is none of them."""
        best: dict[int, float] = {}
        for most in (2, self.description.vocabulary):
            if token not in best:
                asked = {**GREEDY, "prompt": prefix, "max_tokens": 1, "logprobs": most}
                told = self._server.handle_completions(asked)["choices"][0]["logprobs"]["content"][0]
                best = {each["id"]: each["logprob"] for each in told["top_logprobs"]}
        (argmax, top), (_, second) = list(best.items())[:2]
        return Score(top - best[token], None, argmax, top - second)

    def encode(self, texts: Sequence[Any], **template: Any) -> list[list[int]]:
        """Not had. Raises EngineError."""
        raise EngineError("this engine encodes no text: give prompts as ids")

    encode_messages = encode

    def decode(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[None]:
        """Not told."""
        return [None] * len(outputs)

    def close(self) -> None:
        """End the server; safe to call twice."""
        self._server = None
