"""The table of methods: what a checkpoint is made for, whose γ counts, one name for each, and the page that has it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec import cli
from pytest_specdec.engines import choice, vllm_source
from pytest_specdec.engines.choice import choose_engines, refuse_impossible
from pytest_specdec.engines.methods import METHODS, Method, method_named, method_of
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.vllm_source import names_of_vllm, options_of_vllm, speculative_options_of_vllm
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.settings import Settings

ROOT = Path(__file__).parents[3]
VLLM = find_spec("vllm")
has_vllm = pytest.mark.skipif(VLLM is None, reason="vLLM is not here")
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
}
BATCHES = [[1, 2, 5], [3, 64, 0]]
HEADS: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "a draft model": ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "org/small", "draft_model", 3),
    "nothing was fetched": ({}, "org/small", "draft_model", 3),
    "an EAGLE head without a sign": ({"architectures": ["LlamaForCausalLM"]}, "y/EAGLE-LLaMA3-8B", "eagle", 3),
    "an EAGLE head": ({"architectures": ["EagleMiniCPMForCausalLM"]}, "m", "eagle", 3),
    "EAGLE-3 by its end": ({"architectures": ["LlamaForCausalLMEagle3"]}, "m", "eagle3", 3),
    "EAGLE-3, not fetched": ({}, "AngelSlim/Qwen3-8B_eagle3/", "eagle3", 3),
    "EAGLE-3 of speculators": (SPECULATORS, "m", "eagle3", 5),
    "another model within a folder": ({}, "eagle-tests/small", "draft_model", 3),
    "MTP": ({"model_type": "mimo_mtp", "n_predict": 2}, "m", "mtp", 2),
    "MTP, the number nested": (
        {"model_type": "qwen3_5_mtp", "text_config": {"mtp_num_hidden_layers": 1}},
        "m",
        "mtp",
        1,
    ),
    "Gemma's assistant": ({"model_type": "gemma4_assistant"}, "m", "mtp", 3),
    "a plain model that could have had MTP": ({"model_type": "llama", "use_mtp": False}, "m", "draft_model", 3),
    "a key that says no": ({"medusa_num_heads": 0}, "m", "draft_model", 3),
    "old Medusa": ({"medusa_num_heads": 4}, "m", "medusa", 4),
    "DSpark": ({"architectures": ["Qwen3DSparkModel"], "block_size": 7}, "m", "dspark", 7),
    "DFlash": ({"architectures": ["DFlashDraftModel"]}, "m", "dflash", 3),
    "an MLP speculator": ({"model_type": "mlp_speculator", "n_predict": 4}, "m", "mlp_speculator", 4),
}


@pytest.mark.parametrize(("config", "name", "method", "gamma"), HEADS.values(), ids=HEADS)
def test_a_checkpoint_tells_its_method_and_gamma(config: dict[str, Any], name: str, method: str, gamma: int) -> None:
    """By its config.json, else by its own name; a plain model drafts as one."""
    found = method_of(config, name)
    assert (found.name, found.default_gamma(config)) == (method, gamma)


@has_vllm
def test_each_head_that_vllm_loads_is_known() -> None:
    """By its architecture: none is taken for a draft model."""
    assert VLLM is not None
    registry = Path(str(VLLM.origin)).parent / "model_executor/models/registry.py"
    (listed,) = (
        node.value
        for node in ast.parse(registry.read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_SPECULATIVE_DECODING_MODELS"
    )
    heads = set(ast.literal_eval(listed)) - {"ExtractHiddenStatesModel"}  # vLLM's own, for no checkpoint
    assert {head for head in heads if method_of({"architectures": [head]}, "m").name == "draft_model"} == set()


@has_vllm
def test_each_name_that_vllm_takes_is_in_the_table() -> None:
    """And the table has none that this version lacks."""
    names = names_of_vllm()
    assert names is not None
    assert {method_named(name).name for name in names} == {each.name for each in METHODS if "vllm" in each.engines}


def chosen(mark: dict[str, Any], **settings: str) -> list[EngineSpec]:
    return choose_engines("vllm", True, [{"target": "m", **mark}], Settings.resolve(settings, {}, {}))


def test_a_method_without_a_draft_model_leaves_the_draft_to_others() -> None:
    """Of one mark; MTP and DSpark draft by the target's own head, and some of llama.cpp's look drafts up."""
    alone = ["ngram", "suffix", "ngram-mod", "mtp", "dspark"]
    drafts = {each.method: each.draft for each in chosen({"draft": "d", "method": ["draft_model", *alone, "eagle"]})}
    assert drafts == {"draft_model": "d", **dict.fromkeys(alone), "eagle": "d"}


def test_a_draft_that_may_be_the_target_s_own_head_is_taken() -> None:
    """Before it is fetched, nothing else is known of it; whether vLLM takes it for that head is seen when it loads."""
    assert [each.draft for each in chosen({"draft": "no-such/assistant", "method": "mtp"})] == ["no-such/assistant"]


@pytest.mark.parametrize("method", ["ngram", ["ngram", "suffix"]])
def test_lookup_takes_no_draft_of_its_module_s_mark(method: Any) -> None:
    """Marks are merged, and the test's own names the method alone."""
    assert {each.draft for each in chosen({"draft": "d", "method": method})} == {None}


@pytest.mark.parametrize("method", ["extract_hidden_states", "mtp"])
def test_a_draft_of_the_mark_that_no_method_takes_is_an_error(method: str, tmp_path: Path) -> None:
    """Of the settings it is left to other tests."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ConfigurationError, match=rf"taken by no method that is named \({method}\): say draft=None, or"):
        chosen({"draft": str(tmp_path), "method": method})
    assert [each.draft for each in chosen({"method": method}, draft=str(tmp_path))] == [None]


@pytest.mark.parametrize(
    ("engine", "method"), [("vllm", "eagle3"), ("vllm", "medusa"), ("transformers", "draft_model")]
)
def test_a_method_that_needs_a_draft_is_refused_without_one(engine: str, method: str) -> None:
    """Before anything is loaded."""
    settings = Settings.resolve({"target": "t"}, {}, {})
    with pytest.raises(ConfigurationError, match=f"method '{method}' drafts with a model of its own: name it as"):
        refuse_impossible(choose_engines(engine, True, [{"method": method}], settings), False, None)


@pytest.mark.parametrize(
    ("engine", "method", "words"),
    [
        ("vllm", "ngrm", "vllm has no method 'ngrm'; did you mean 'ngram'?"),
        ("transformers", "mtp", "transformers has no method 'mtp'; `pytest-specdec methods` lists"),
    ],
)
def test_a_method_that_the_engine_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, engine: str, method: str, words: str
) -> None:
    """One that a newer vLLM has passes through, and so does any where none is installed or another interpreter's is."""
    settings = Settings.resolve({"target": "t", "draft": "d"}, {}, {})
    monkeypatch.setattr(choice, "names_of_vllm", lambda: frozenset({"ngram", "eagle", "of_tomorrow"}))
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        refuse_impossible(choose_engines(engine, True, [{"method": method}], settings), False, None)
    refuse_impossible(choose_engines("vllm", True, [{"method": "of_tomorrow"}], settings), False, None)
    refuse_impossible(choose_engines("vllm", True, [{"method": "x", "python": "/p"}], settings), False, None)
    monkeypatch.setattr(choice, "names_of_vllm", lambda: None)
    refuse_impossible(choose_engines("vllm", True, [{"method": "x"}], settings), False, None)


OF_VLLM = {
    "engine/arg_utils.py": "class EngineArgs:\n    gpu_memory_utilization: float = 0.9\n",
    "entrypoints/llm.py": "class LLM:\n    def __init__(self, model, *, chat_template=None, **kwargs): ...\n",
    "config/speculative.py": "class SpeculativeConfig:\n    prompt_lookup_max: int\n",
}


@pytest.fixture
def vllm_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Mapping[str, str]], None]:
    """Makes vLLM's source these files."""
    readers = (names_of_vllm, options_of_vllm, speculative_options_of_vllm)

    def write(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        origin = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(vllm_source, "find_spec", lambda name: origin)
        for reader in readers:  # each without what it remembers of the vLLM that is here
            monkeypatch.setattr(choice, reader.__name__, reader.__wrapped__)

    return write


def refuse(others: bool = False, speculates: bool = True, **said: Any) -> None:
    settings = Settings.resolve({"target": "t"}, {}, {})
    refuse_impossible(choose_engines("vllm", speculates, [{"method": "ngram", **said}], settings), others, None)


@pytest.mark.parametrize("speculates", [True, False])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"gpu_memory_utilisation": 0.5},
            "vllm has no option 'gpu_memory_utilisation'; did you mean 'gpu_memory_",
        ),
        ({"chat_tmplate": "a"}, "vllm has no option 'chat_tmplate'; did you mean 'chat_template'?"),
        ({"speculative_config": {}}, "'speculative_config' is said by the keys method, draft and gamma"),
        ({"spec_tokens": 4}, "'spec_tokens' is said by the keys method, draft and gamma"),
    ],
)
def test_a_misspelt_option_of_vllm_is_refused(
    vllm_of: Callable[[Mapping[str, str]], None], options: dict[str, Any], words: str, speculates: bool
) -> None:
    """Not where another plugin starts engines, in another interpreter, or of a vLLM whose source is another."""
    vllm_of(OF_VLLM)
    with pytest.raises(ConfigurationError, match=rf"^options: {re.escape(words)}"):
        refuse(speculates=speculates, options=options)
    refuse(others=True, speculates=speculates, options=options)
    refuse(speculates=speculates, options=options, python="/p")
    if "speculative_config" not in options and "spec_tokens" not in options:
        vllm_of({**OF_VLLM, "engine/arg_utils.py": "class EngineArgs(Base):\n    a: int\n"})
        refuse(speculates=speculates, options=options)


def test_an_option_that_may_be_another_plugin_s_of_vllm_passes(
    vllm_of: Callable[[Mapping[str, str]], None],
) -> None:
    """Only a name that is nearly that of an option is taken for it; dashes are read as vLLM reads them."""
    vllm_of(OF_VLLM)
    with pytest.raises(ConfigurationError, match="speculative_options: vllm has no option 'prompt_lookup_mx'; did"):
        refuse(speculative_options={"prompt_lookup_mx": 4})
    refuse(options={"ulysses_sequence_parallel_size": 2, "adapter": "a"}, speculative_options={"prompt-lookup-max": 4})


@has_vllm
def test_the_vllm_that_is_here_tells_its_options() -> None:
    """So that its versions are noticed that keep them elsewhere."""
    assert {"gpu_memory_utilization", "kv_cache_memory_bytes", "chat_template"} <= (options_of_vllm() or set())
    assert {"prompt_lookup_max", "num_speculative_tokens"} <= (speculative_options_of_vllm() or set())


@pytest.mark.parametrize("batches", [5, [5], [1, 2, 3], [[1, 2]], [[1, 2, True]], "many"])
def test_gamma_by_batch_size_has_one_shape(batches: Any) -> None:
    """Another is refused when tests are collected."""
    with pytest.raises(ConfigurationError, match=r"num_speculative_tokens_per_batch_size=.*\[\[first, last, γ\], …\]"):
        chosen({"speculative_options": {"num_speculative_tokens_per_batch_size": batches}})


def test_a_head_that_is_named_is_what_it_is(tmp_path: Path) -> None:
    """Without a method; a head of MTP is taken where MTP is named, and γ is the head's."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_assistant", "n_predict": 2}))
    for mark in ({}, {"method": "mtp"}, {"method": "gemma4_mtp"}):
        (spec,) = chosen({"draft": str(tmp_path), **mark})
        assert (spec.method, spec.draft, spec.gamma) == ("mtp", str(tmp_path), 2)
    (eagle,) = chosen({"draft": "constructed:tiny:eagle"})
    assert (eagle.method, eagle.named_method) == ("eagle", None)


def test_an_alias_is_the_same_engine() -> None:
    """Loaded once; the name that was given is kept."""
    (alias,), (plain,) = chosen({"method": "deepseek_mtp"}), chosen({"method": "mtp"})
    assert (alias.key, alias.label, alias) == (plain.key, plain.label, plain)
    assert (alias.named_method, plain.named_method) == ("deepseek_mtp", "mtp")


def test_gamma_is_the_methods_own_where_none_is_named(tmp_path: Path) -> None:
    """An option's, the target's number of heads, or what the engine takes; a named one goes before."""
    (tmp_path / "config.json").write_text(json.dumps({"num_nextn_predict_layers": 1}))
    gammas = {
        "suffix": chosen({"method": "suffix"}),
        "a lower tree": chosen({"method": "suffix", "speculative_options": {"suffix_decoding_max_tree_depth": 8}}),
        "by batch size": chosen({"speculative_options": {"num_speculative_tokens_per_batch_size": BATCHES}}),
        "the target's": chosen({"target": str(tmp_path), "method": "mtp"}),
        "ngram": chosen({"method": "ngram"}),
        "named": chosen({"method": "suffix"}, gamma="5"),
    }
    assert {name: spec.gamma for name, (spec,) in gammas.items()} == {
        "suffix": 24,
        "a lower tree": 8,
        "by batch size": 5,
        "the target's": 1,
        "ngram": 3,
        "named": 5,
    }


def test_the_command_prints_each_method(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the engine that is installed has them: what it lacks, and what the table lacks, are told."""
    names = frozenset({"eagle", "mtp", "mimo_mtp", "newer_mtp", "of_tomorrow"})
    monkeypatch.setattr(cli, "names_of_vllm", lambda: names)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["methods"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["methods"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    told = dict(lines)
    assert {each.name for each in METHODS} | {"of_tomorrow"} <= told.keys()
    assert told["mtp"].endswith("mimo_mtp, newer_mtp")
    assert told["eagle3"].endswith("not in this version")
    assert told["of_tomorrow"].endswith("not known to this package: it passes through")


def row(method: Method) -> tuple[str, ...]:
    """The columns of docs/methods.md that follow from the table."""
    keys = ", ".join(f"`{key}`" for key in method.gamma_keys)
    return (
        f"`{method.name}`",
        ", ".join(f"`{alias}`" for alias in method.aliases),
        ", ".join(f"{engine} {version}" for engine, version in method.engines.items()),
        method.drafter,
        ", ".join(f"`{sign}`" for sign in (*method.signs, *method.keys)),
        f"{keys}, else {method.gamma}" if keys else str(method.gamma),
        method.output,
    )


def test_the_page_has_every_method() -> None:
    """Each with how it stands: gated, refused by the engine, or not had; what gates it is a test that is there."""
    page = (ROOT / "docs/methods.md").read_text("utf-8")
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page.splitlines() if "| `" in line]
    assert [cells[:-1] for cells in rows] == [row(method) for method in METHODS]
    assert {cells[-1].split(":")[0] for cells in rows} <= {"gated", "refused", "not had"}
    for file, test in re.findall(r"`(tests/\S+\.py)::(\w+)`", page):
        assert f"def {test}(" in (ROOT / file).read_text("utf-8")
