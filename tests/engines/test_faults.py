"""What goes wrong with real engines is one clear error, and the next test still runs, on a new engine if need be.

One inner pytest session meets every fault in turn, with real vLLM; the outer tests read what it said.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("vllm")

SUITE = """
import os, signal, threading
import pytest

pair = dict(target="constructed:tiny", draft="constructed:tiny:draft", gamma=2, max_model_len=512)


@pytest.mark.specdec(**{**pair, "target": "./empty"})
def test_empty_folder(specdec, vllm_spec, scenario):
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(**{**pair, "draft": None, "method": "ngram"})
def test_dead_drafter(specdec, vllm_spec, scenario):
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(**{**pair, "scenario": "long_prompt.toml"})
def test_prompt_too_long(specdec, vllm_spec, scenario):
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(**{**pair, "scenario": "endless.toml"})
def test_killed(specdec, specdec_session, vllm_spec, scenario):
    specdec_session.workload(vllm_spec, scenario)
    engine = specdec_session.pool.awake(vllm_spec)
    engine.prepare(specdec_session.workload(vllm_spec, scenario))
    os.kill(engine.description.pid, signal.SIGSTOP)  # however fast the machine is, the run is not over when it dies
    threading.Timer(0.5, os.kill, (engine.description.pid, signal.SIGKILL)).start()
    with specdec_session.pool.using(vllm_spec):
        engine.run()


real = dict(target="smollm2?layers=4", dtype="float32", draft=None, method="ngram", scenario="TEXT")


@pytest.mark.specdec(**{**pair, **real, "options": {"kv_cache_dtype": "fp8"}, "reference": {"options": {}}})
def test_eight_bits_in_one_arm(specdec, vllm_spec, scenario):
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(**{**pair, "scenario": "after.toml"})
def test_afterwards(specdec, vllm_spec, scenario):
    specdec(vllm_spec, scenario)
"""
EIGHT_BITS = "test_eight_bits_in_one_arm"
NO_EIGHT_BITS = ("Unsupported CPU attention configuration", "FP8 KV cache on CPU requires x86 with AVX-512")
TEXT = Path(__file__).parents[2] / "scenarios" / "prose.toml"
SCENARIO = 'source = { format = "random", length = 8 }\ncount = 2\nmax_tokens = 24\nrounds = 1\nwarmup_rounds = 0\n'


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Everything that the inner session printed."""
    folder = tmp_path_factory.mktemp("faults")
    files = {
        "test_inner.py": SUITE.replace("TEXT", str(TEXT)),
        "short.toml": SCENARIO,
        "long_prompt.toml": SCENARIO.replace("length = 8", "length = 500"),
        "after.toml": SCENARIO,
        "endless.toml": SCENARIO.replace("max_tokens = 24", "max_tokens = 480").replace("count = 2", "count = 64"),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "empty").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "pytest_specdec.plugin", "-p", "no:cacheprovider", "-rA", "-v"]
    command += ["--specdec-scenario", "short.toml", "--specdec-rounds", "1", "--specdec-warmup", "0", "test_inner.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600, check=False).stdout


def outcome(said, test):
    """The word that `-rA` puts before the test's id."""
    return next(line.split()[0] for line in said.splitlines() if f"::{test}[" in line and line.split()[0].isupper())


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_empty_folder", "engine empty-target (vllm) failed while loading"),
        ("test_dead_drafter", "nothing was drafted in 48 tokens: the engine decoded without speculation"),
        ("test_prompt_too_long", "500 + 24 tokens exceed the engine's context of 512"),
        ("test_killed", "died while run"),
        (EIGHT_BITS, "divergent: "),
        (EIGHT_BITS, "hint: as text, after "),
        (EIGHT_BITS, "cache.cache_dtype is fp8 here and auto for target-only"),
    ],
)
def test_each_fault_is_one_clear_error(said, test, message):
    """The test does not pass, and what it says names the fault."""
    if test == EIGHT_BITS and "avx512f" not in Path("/proc/cpuinfo").read_text("utf-8"):
        assert any(words in said for words in NO_EIGHT_BITS)
        pytest.skip("vLLM's kernels for processors without AVX-512 have no KV cache in eight bits")
    assert outcome(said, test) in ("FAILED", "ERROR")
    assert message in said


def test_the_next_test_runs_on_a_new_engine(said):
    """After every fault, on the engine that was killed, decoding is right again."""
    assert outcome(said, "test_afterwards") == "PASSED"
    assert said.count("tiny-draft_model-g2 is ready") == 2
