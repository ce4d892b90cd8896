"""NVIDIA Dynamo's frontend with one vLLM worker: gated like any engine, and a worker that is killed is named.

Needs an interpreter that has Dynamo: the one that runs pytest, or the one that DYNAMO_PYTHON names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pytest_specdec.engines.process_group import live_members
from pytest_specdec.errors import EngineError
from pytest_specdec.models import expected_continuation
from pytest_specdec.workloads.scenario import load_scenario
from pytest_specdec.workloads.workload import Request, Workload

PYTHON = os.environ.get("DYNAMO_PYTHON", sys.executable)
PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('dynamo') is None)"
HAS_DYNAMO = subprocess.run([PYTHON, "-c", PROBE], check=False, capture_output=True).returncode == 0
TARGET = "constructed:tiny"
STARTS = (7, 90, 311, 555)
TOKENS = 32
PLACES = ("--port", "{port}", "--metrics-port", "{metrics_port}", "--model", "{model}")
CONTEXT = 2048
COMMAND = [PYTHON, str(Path(__file__).with_name("launch.py")), *PLACES, "--max-model-len", str(CONTEXT)]


def dynamo(**drafting):
    """A mark: Dynamo with this speculation, beside vLLM alone in a worker."""
    server = {
        "protocol": "dynamo",
        "command": [*COMMAND, "--no-enable-prefix-caching"],
        "speculation": ["--speculative-config", json.dumps({**drafting, "num_speculative_tokens": 3})],
        "metrics": "http://{host}:{metrics_port}/metrics",
    }
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return pytest.mark.specdec(
        server=server, method=drafting["method"], gamma=3, environment=environment, reference="vllm"
    )


pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not HAS_DYNAMO, reason=f"{PYTHON} has no dynamo; run tox -e dynamo"),
    pytest.mark.specdec(target=TARGET, max_model_len=CONTEXT),
]
ngram = dynamo(method="ngram")


@pytest.fixture
def walks(tmp_path):
    """Prompts that go along the constructed pair's cycle and begin it anew, so that lookup finds what comes next."""
    ahead = [[start, *expected_continuation(TARGET, (start,), TOKENS + 8)] for start in STARTS]
    prompts = [[*walk, *walk[:4]] for walk in ahead]
    file = tmp_path / "walks.toml"
    file.write_text(f'source = {{ format = "ids", prompts = {prompts} }}\nmax_tokens = {TOKENS}\nconcurrency = 2\n')
    return load_scenario(file)


@ngram
def test_lookup_behind_the_frontend(specdec, openai_server, walks):
    """Exact through frontend and worker; the worker's own counters say what was drafted."""
    record = specdec(openai_server, walks)
    assert record.acceptance.rate.value > 0.8


@ngram
def test_a_worker_killed_in_mid_stream_is_named(specdec_session, openai_server):
    """The frontend lives on and breaks the streams off; every request says so, and none is taken for an answer."""
    workload = Workload("long", tuple(Request((start,), CONTEXT - 8) for start in STARTS), len(STARTS))
    with specdec_session.pool.using(openai_server) as engine:
        engine.prepare(workload)
        threading.Thread(target=end_worker_in_mid_stream, args=[engine], daemon=True).start()
        engine.run()
        with pytest.raises(EngineError, match=r"4 of 4 requests failed; the first: the server broke off"):
            engine.collect()


@dynamo(method="draft_model", model="{draft}").with_args(draft="constructed:tiny:draft")
def test_a_drafter_behind_the_frontend(specdec, openai_server, walks):
    """A drafter of another size, right on 80 % of the tokens."""
    record = specdec(openai_server, walks)
    assert 0.3 < record.acceptance.rate.value < 0.9


def end_worker_in_mid_stream(engine):
    """Once every answer has begun, which may take its time."""
    while not all(exchange.pieces for exchange in engine._exchanges):
        time.sleep(0.01)
    end_worker(engine.description.pid)


def end_worker(group):
    """Kill the worker's processes, and leave launcher and frontend."""
    for pid in live_members(group):
        words = " ".join(psutil.Process(pid).cmdline())
        if "dynamo.frontend" not in words and "launch.py" not in words:
            os.kill(pid, signal.SIGKILL)
