"""A real engine that is decoding when pytest is terminated or killed: what had been measured stays, and it ends.

The inner session has a gate of the target alone, and then one with speculation; its conftest sends the signal to pytest
as soon as that engine has the word to decode.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest

import pytest_specdec
from pytest_specdec.engines.process_group import live_members
from pytest_specdec.models.cache import default_root

pytestmark = pytest.mark.engine("transformers")

CACHE = default_root()  # as it is before pytester gives each test a home of its own
PLUGINS = ("-p", "benchmark", "-p", "pytest_specdec.plugin", "-p", "no:cacheprovider")
CONFTEST = """
import os
from pathlib import Path

import pytest

@pytest.hookimpl(wrapper=True)
def pytest_specdec_start_engine(spec):
    engine = yield
    Path("groups", str(engine.description.pid)).touch()
    if spec.speculates:
        receive = engine._channel.receive
        def run():
            engine._channel.receive = killed
            type(engine).run(engine)
        def killed(timeout):
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
            return receive(timeout)
        engine.run = run
    return engine
"""
GATES = """
import pytest

pytestmark = pytest.mark.specdec(
    target="constructed:tiny", draft="constructed:tiny:draft", gamma=3, max_model_len=512, scenario="short.toml"
)

def test_alone(specdec, transformers_ar, scenario):
    specdec(transformers_ar, scenario)

def test_speculative(specdec, transformers_spec, scenario):
    specdec(transformers_spec, scenario)
"""
SCENARIO = """
source = { format = "ids", prompts = [[5, 9, 12], [8, 4]] }
max_tokens = 24
concurrency = 2
rounds = 2
"""
EARLIER = b'{"benchmarks": []}\r\n'


@pytest.fixture
def ended_by(pytester, monkeypatch):
    """Runs the inner session, sends it a signal; gives its result, the saved runs, and the groups of its engines."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest_specdec.__file__).parents[1]), prepend=os.pathsep)
    for name in [name for name in os.environ if name.startswith("SPECDEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("SPECDEC_CACHE", str(CACHE))
    pytester.makeini("[pytest]\nspecdec_time_budget = 1\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(GATES)
    (pytester.path / "short.toml").write_text(SCENARIO)
    (pytester.path / "groups").mkdir()
    earlier = pytester.path / ".benchmarks" / "machine" / "0001_earlier.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(EARLIER)

    def ended_by(number):
        monkeypatch.setenv("SIGNAL", str(int(number)))
        result = pytester.runpytest_subprocess(*PLUGINS, "--benchmark-autosave")
        assert earlier.read_bytes() == EARLIER
        saved = [json.loads(path.read_text()) for path in pytester.path.glob(".benchmarks/*/0001_*") if path != earlier]
        return result, saved, [int(path.name) for path in (pytester.path / "groups").iterdir()]

    return ended_by


def test_sigterm_keeps_the_gate_before_and_ends_the_engines(ended_by):
    """In pytest-benchmark's storage, under the table and in the exit status; the engines have ended when pytest has."""
    result, (saved,), groups = ended_by(signal.SIGTERM)
    assert result.ret == 128 + signal.SIGTERM
    assert [bench["extra_info"]["specdec"]["asked"]["method"] for bench in saved["benchmarks"]] == ["none"]
    assert saved["specdec"] == {"partial": True, "reason": "ended by SIGTERM after 1 of 2 gates"}
    assert "partial: ended by SIGTERM after 1 of 2 gates" in result.outlines
    assert [live_members(group) for group in groups] == [[], []]


@pytest.mark.thorough
def test_sigkill_ends_the_engines_too(ended_by):
    """Nothing is saved, and no engine outlives pytest by more than a minute."""
    result, saved, groups = ended_by(signal.SIGKILL)
    assert result.ret == -signal.SIGKILL
    assert saved == []
    assert len(groups) == 2
    deadline = time.monotonic() + 60
    while any(map(live_members, groups)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [live_members(group) for group in groups] == [[], []]
