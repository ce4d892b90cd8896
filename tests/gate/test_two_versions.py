"""Two releases of an engine side by side, in two interpreters, the other of which has nothing of ours installed.

A release that decodes as the present one does is green, and the report names both. One with a real fault is red:
Transformers 4.40.2 advances the cache position as if one token had been accepted.
"""

import subprocess
import sys
import sysconfig

import pytest

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
    from dataclasses import replace

    python = interpreter(request.param)
    return replace(transformers_spec, **random_pair, python=python, reference_python=sys.executable)


pytestmark = pytest.mark.specdec(
    target="random", draft="random", method="draft_model", gamma=4, dtype="float32", scenario="scenarios/single.toml"
)


@pytest.mark.parametrize("other_release", ["4.57.6"], indirect=True)
def test_a_release_that_decodes_alike_is_green_and_both_are_named(specdec, other_release, scenario):
    """The record carries the versions of both arms."""
    record = specdec(other_release, scenario)
    assert record["versions"]["transformers"] == "4.57.6"
    assert record["verdict"]["reference_versions"]["transformers"] != "4.57.6"
    assert record["verdict"]["outcome"] == "identical"


@pytest.mark.parametrize("other_release", ["4.40.2"], indirect=True)
def test_a_release_with_a_real_fault_is_red(specdec, other_release, scenario):
    """In float32, with a large gap: divergent, and never called a tie."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)divergent.* below the target's argmax"):
        specdec(other_release, scenario)
