"""llama.cpp's own server against what must follow, and against Transformers, at equal weights in float32.

Then llama.cpp as the engine of another package, which has the hook alone: examples/another-engine. What both need is
installed by `tox -e llamacpp`.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.engines.spec import NO_SPECULATION, EngineSpec
from pytest_specdec.errors import EngineError, Unsupported
from pytest_specdec.generation import Speculation
from pytest_specdec.models import resolve
from pytest_specdec.models.truth import Counting, expected_counters
from pytest_specdec.workloads.workload import Request, Workload

TARGET = "constructed:tiny?memory=24&dtype=float32"
DRAFT = "constructed:tiny:draft?memory=24&dtype=float32"
SMOLLM2 = "smollm2?dtype=float32"
SMILES = (48010, 42, 47526, *(10813, 38887) * 10)  # "Repeat: ", and faces; those that follow have three tokens each
GAMMA = 4
TOKENS = 65
CONTEXT = 512
PLACES = ("--port", "{port}", "--model", "{model}", "--context", str(CONTEXT))
SERVER = {
    "protocol": "llamacpp",
    "command": [sys.executable, str(Path(__file__).with_name("serve.py")), *PLACES],
}
LOOKUP = ["--method", "{method}", "--gamma", "{gamma}"]
DRAFTER = [*LOOKUP, "--draft", "{draft}"]

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed; run tox -e llamacpp"),
    pytest.mark.specdec(target=TARGET, draft=None, gamma=GAMMA, dtype="float32", reference="transformers"),
]
ngram = pytest.mark.specdec(method="ngram-simple", server={**SERVER, "speculation": LOOKUP})
draft_model = pytest.mark.specdec(method="draft-simple", draft=DRAFT, server={**SERVER, "speculation": DRAFTER})
RATES = (0.9, 0.8, 0.7, 0.6)  # that the first draft, the first two, the first three, all four are accepted
SYNTHETIC = {
    "method": "draft-simple",
    "draft": DRAFT,
    "server": {**SERVER, "speculation": [*DRAFTER, "--accept", ",".join(map(str, RATES))]},
}
real_text = pytest.mark.specdec(
    target=SMOLLM2,
    method="ngram-simple",
    server={**SERVER, "speculation": LOOKUP, "stream": False},
    scenario="scenarios/prose.toml",
)

installed = pytest.mark.skipif(find_spec("pytest_specdec_xllamacpp") is None, reason="another-engine is not installed")


@pytest.fixture
def walks(walks_of):
    """Six prompts, in which lookup finds what comes next; four answers at once, two rounds."""
    return walks_of(TARGET, (7, 90, 311, 555, 702, 960), TOKENS, concurrency=4, rounds=2)


def expected_of(session, engine, scenario, draft, rounds) -> Speculation:
    """In so many rounds: the first token is the prompt's own pass', and no more is drafted than the answer wants."""
    asked = [(request.prompt_ids, TOKENS) for request in session.workload(engine, scenario).requests]
    return expected_counters(Counting(first=1, cut=True, whole=False), (TARGET, draft), asked * rounds, GAMMA)


def gate_what_is_known(specdec, session, engine, scenario, draft) -> None:
    """Every token is the known one, and every counter of the rounds that were measured."""
    record = specdec(engine, scenario)
    told, rounds = record.acceptance, record.throughput.rounds
    counts = (told.drafts, told.draft_tokens, told.accepted_tokens, told.accepted_per_position)
    assert (record.verdict.outcome, record.verdict.known_truth.wrong.value) == ("identical", 0)
    assert Speculation(*(each.value for each in counts)) == expected_of(session, engine, scenario, draft, rounds)


@ngram
def test_target_only(specdec, openai_server, walks):
    """The same command without speculation: every token is the known one, and no prompt was in the cache."""
    record = specdec(replace(openai_server, method=NO_SPECULATION, gamma=None), walks)
    assert record.verdict.known_truth.wrong.value == 0
    assert record.throughput.prefix_cache_hits.value == 0


@draft_model
def test_draft_model(specdec, specdec_session, openai_server, walks):
    """A draft model that is wrong on one token in five."""
    gate_what_is_known(specdec, specdec_session, openai_server, walks, DRAFT)


@ngram
def test_ngram(specdec, specdec_session, openai_server, walks):
    """What is looked up is always right."""
    gate_what_is_known(specdec, specdec_session, openai_server, walks, TARGET)


@pytest.mark.specdec(**SYNTHETIC)
def test_synthetic_acceptance_is_red(specdec, openai_server, walks):
    """Drafts are accepted by chance, whatever the target says."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)^divergent: .*: an accepted draft"):
        specdec(openai_server, walks)


@pytest.mark.specdec(**SYNTHETIC, unjudged="what a drafter would gain that is right so often")
def test_synthetic_acceptance_is_measured_where_it_is_asked_for(specdec, openai_server, walks):
    """Figures and no verdict: no answer is the target's own, and the rates are those that were asked for."""
    record = specdec(openai_server, walks)
    assert (record.gate, record.verdict.outcome) == ("unjudged", "not judged")
    assert (record.verdict.counts["identical"], record.speedup.ratio.value is None) == (0, False)
    found = [each / record.acceptance.drafts.value for each in record.acceptance.accepted_per_position.value]
    assert found == pytest.approx(RATES, abs=0.15)


@real_text
def test_real_text(specdec, openai_server, scenario):
    """SmolLM2 on English, against Transformers in float32."""
    assert set(specdec(openai_server, scenario).verdict.counts) == {"identical"}


@real_text
def test_characters_of_several_tokens_want_whole_answers(specdec_session, openai_server):
    """llama.cpp streams a character's last token alone: that is an error with its remedy, and the remedy helps."""
    workload = Workload("smiles", (Request(SMILES, 9),), 1)
    with specdec_session.pool.using(openai_server) as engine:
        (whole,) = one_pass(engine, workload).generations
        assert (len(whole.token_ids), whole.error) == (9, None)
        assert engine.description.context == CONTEXT
        spec = replace(openai_server, server={"url": engine.url, "protocol": "llamacpp"})
        with (
            closing(ServedEngine(spec, 600, 600, lambda reference: engine.folder)) as streaming,
            pytest.raises(EngineError, match=r"3 token ids arrived, but the server counts 9 .*server\['stream'\]"),
        ):
            one_pass(streaming, workload)


@pytest.fixture(params=[("draft-simple", DRAFT), ("ngram-simple", None)], ids=["draft-simple", "ngram-simple"])
def another_engine(request, tmp_path):
    """The other package's engine, with its models as GGUF files."""
    from tests.llamacpp.as_gguf import write_gguf

    method, draft = request.param
    files = {model: str(tmp_path / f"{at}.gguf") for at, model in enumerate(filter(None, (TARGET, draft)))}
    for model, file in files.items():
        write_gguf(Path(resolve(model)), Path(file))
    known = {"target": TARGET, "draft": draft, "method": method, "gamma": GAMMA, "dtype": "float32"}
    return EngineSpec(backend="xllamacpp", options={"gguf": files}, **known)


@installed
def test_another_engine(specdec, specdec_session, another_engine, walks):
    """Both arms are its own; every token is the known one, and every counter."""
    gate_what_is_known(specdec, specdec_session, another_engine, walks, another_engine.draft or TARGET)


@pytest.fixture
def unloaded():
    """The other package's engine, before it has a server."""
    from pytest_specdec_xllamacpp import LlamaCpp

    return LlamaCpp.__new__(LlamaCpp)


ASKED = Workload("asked", (Request((5,), 4),), 4)


def asking(**fields) -> Workload:
    return replace(ASKED, requests=(replace(ASKED.requests[0], **fields),))


@installed
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (asking(min_tokens=2), "min_tokens"),
        (asking(stop_token_ids=(7,)), "stop_token_ids"),
        (asking(sampling={"temperature": 0.8}), "sampling"),
        (replace(ASKED, keeps_prefix_cache=True), "keeps_prefix_cache"),
    ],
)
def test_another_engine_refuses_what_it_would_pass_over(unloaded, asked, named):
    """By name, before anything is asked of llama.cpp."""
    with pytest.raises(Unsupported, match=f"not had here: {named}$"):
        unloaded.prepare(asked)


@installed
def test_another_engine_computes_in_float32(unloaded):
    """Flash attention does not, so it is off."""
    from xllamacpp import llama_flash_attn_type

    unloaded.spec = EngineSpec(backend="xllamacpp", target="t.gguf", dtype="float32")
    assert unloaded._parameters().flash_attn_type == llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED


class Silent:
    """A server that answers nothing."""

    def handle_completions(self, body, hear):
        """Say nothing."""


@installed
def test_no_answer_at_all_is_the_request_s_error(unloaded):
    """Whatever became of the server; the session goes on."""
    unloaded._server, unloaded._workload, unloaded._began = Silent(), ASKED, 0.0
    assert unloaded._answer(ASKED.requests[0], 0.0).error == "0 of None token ids came: {}"
