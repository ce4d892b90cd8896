"""A gate on an engine that ssh reaches: worker and meter run over the connection, the verdict here.

`ssh` is a command of this test that runs the remote command on this machine, in an environment of its own.
"""

import os
import sys

import pytest

SSH = """#!/bin/sh
echo "$2" >> {folder}/calls.txt
for command; do :; done
env -i PATH="$PATH" HOME="$HOME" OMP_NUM_THREADS=1 sh -c "exec $command"
"""

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.engine("transformers"),
    pytest.mark.specdec(
        target="constructed:tiny",
        draft="constructed:tiny:draft",
        max_model_len=512,
        scenario="scenarios/single.toml",
        gamma=4,
        gateway="ssh=there",
        python=sys.executable,
    ),
]


@pytest.fixture
def ssh_calls(tmp_path, monkeypatch):
    """Puts the command on the path; the file tells which host each call named."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(folder=tmp_path))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "calls.txt"


@pytest.mark.thorough
def test_transformers_there(ssh_calls, specdec, transformers_spec, scenario):
    """Judged and measured as on this machine; what this machine cannot see is null and says why."""
    record = specdec(transformers_spec, scenario)
    assert (record.gate, record.verdict.outcome) == ("green", "identical")
    assert set(ssh_calls.read_text().split()) == {"there"}
    assert record.energy.joules.value is not None or "failed" not in record.energy.joules.reason
    assert record.memory.peak_host_bytes.value is None
