"""Two releases of an engine side by side, in two interpreters, the other of which has nothing of ours installed.

A release that decodes as the present one does is green, and the report names both. One with a real fault is red:
Transformers 4.40.2 advances the cache position as if one token had been accepted.
"""

import ast
import re
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

PRINTED = Path(__file__).parents[2] / "docs" / "evidence" / "transformers-4.40.2.txt"
OTHER = {
    "4.57.6": ("transformers==4.57.6", "huggingface-hub==0.36.0", "tokenizers==0.22.1"),
    "4.40.2": ("transformers==4.40.2", "huggingface-hub==0.36.0", "tokenizers==0.19.1"),
}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    """The Python of an environment with another release of Transformers, and all else from this one's packages."""

    def make(version):
        folder = tmp_path_factory.mktemp("release") / version
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        python = str(folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", *OTHER[version]]
        if subprocess.run(pip, check=False).returncode != 0:
            pytest.skip(f"Transformers {version} cannot be installed here: pip reaches no package index")
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "everything-else.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        return python

    return make


@pytest.fixture(scope="module")
def random_pair(tmp_path_factory):
    """A random target and a random drafter: unlike in a constructed pair, what comes next depends on every position."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    made = {}
    for name, seed in (("target", 0), ("draft", 1)):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            initializer_range=0.3,
        )
        made[name] = str(tmp_path_factory.mktemp(name))
        transformers.LlamaForCausalLM(config).save_pretrained(made[name])
    return made


@pytest.fixture
def other_release(request, interpreter, random_pair, transformers_spec):
    """The specification of the speculative engine in the other interpreter, its reference in this one."""
    python = interpreter(request.param)
    return replace(transformers_spec, **random_pair, python=python, reference_python=sys.executable)


pytestmark = [
    pytest.mark.thorough,
    pytest.mark.specdec(
        target="random",
        draft="random",
        method="draft_model",
        gamma=4,
        dtype="float32",
        environment={"OMP_NUM_THREADS": "1"},
        scenario="scenarios/single.toml",
    ),
]


@pytest.mark.parametrize("other_release", ["4.57.6"], indirect=True)
def test_a_release_that_decodes_alike_is_green_and_both_are_named(specdec, other_release, scenario):
    """The record carries the versions of both arms."""
    record = specdec(other_release, scenario)
    assert record.engine.versions["transformers"] == "4.57.6"
    assert record.verdict.reference_versions["transformers"] != "4.57.6"
    assert record.verdict.outcome == "identical"


@pytest.fixture
def reports(specdec_session, tmp_path, monkeypatch):
    """The session writes bug reports into this folder."""
    settings = replace(specdec_session.settings, repro=str(tmp_path), repro_seconds=3600.0)
    monkeypatch.setattr(specdec_session, "settings", settings)
    return tmp_path


def without_numbers(text):
    """The lines, whatever tokens and figures stand in them, and wherever the script lies."""
    lines = re.sub(r"bug report: .*", "bug report", text).splitlines()
    return [re.sub(r"(?:[-\[]?\d[\d.e+\]-]*[\s…]*)+", "0 ", line).rstrip() for line in lines]


def exit_code(python, script, *options):
    """What the script says under this interpreter."""
    return subprocess.run([python, script, *options], capture_output=True, check=False).returncode


@pytest.mark.parametrize("other_release", ["4.40.2"], indirect=True)
def test_a_release_with_a_real_fault_is_red_and_hands_over_a_script(specdec, other_release, scenario, reports):
    """In float32, with a large gap: divergent, and never called a tie.

    The script's request is smaller than the one that was red; it exits with 1 in the faulty release, 0 in the sound
    one, 2 where it cannot run. What README quotes has these lines, with the numbers of that machine.
    """
    said = r"(?s)divergent.* below the target's argmax.*bug report: .*\.py"
    with pytest.raises(pytest.fail.Exception, match=said) as red:
        specdec(other_release, scenario)
    assert set(without_numbers(red.value.msg)) <= set(without_numbers(PRINTED.read_text("utf-8")))
    (script,) = reports.glob("*.py")
    assigned = [node.value for node in ast.parse(script.read_text()).body if isinstance(node, ast.Assign)]
    case = ast.literal_eval(assigned[0])
    assert (len(case["prompt_ids"]) <= 4, case["max_tokens"] <= 16) == (True, True)
    assert exit_code(other_release.python, script) == 1
    assert exit_code(sys.executable, script) == 0
    assert exit_code(sys.executable, script, "--target", "no such folder") == 2
    assert "| transformers | 4.40.2 |" in script.with_suffix(".md").read_text()
