"""The command line: saved runs listed, shown and compared; what this machine can run, told at once."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.saved_runs import made

from pytest_specdec import hardware
from pytest_specdec.cli import main
from pytest_specdec.history import saved

FAIL = ("--fail", "tokens_per_second:5%")
SESSIONS = "one session against one other: the same code may differ by ±9.0 % (99 of 100 sessions, docs/history.md), "
SLOW = [1.25, 1.26, 1.24, 1.25, 1.25, 1.26]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two runs, the second slower and by another version."""
    made.save(tmp_path, 1, {made.TEST: made.record()})
    made.save(tmp_path, 2, {made.TEST: made.record(SLOW, engine={"versions": {"vllm": "0.32.0"}})})
    return tmp_path


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command."""
    code = main(arguments)
    out, error = capsys.readouterr()
    return code, out, error


def test_list_has_a_line_for_each_run(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Number, time, commit, gates, versions; as many as asked."""
    code, out, _ = run_command(capsys, "list", "--storage", str(storage))
    assert code == 0
    assert out.splitlines() == [
        "0001  2026-11-28T01:33:32  0123456789ab  1 gate  vllm 0.26.0",
        "0002  2026-11-28T01:33:32  0123456789ab  1 gate  vllm 0.32.0",
    ]
    assert run_command(capsys, "list", "-n", "1", "--storage", str(storage))[1].startswith("0002")
    assert len(run_command(capsys, "list", "-n", "0", "--storage", str(storage))[1].splitlines()) == 2
    with pytest.raises(SystemExit):
        run_command(capsys, "list", "-n", "-1", "--storage", str(storage))
    assert "'-1' is no number of runs: give 0 for all, or more" in capsys.readouterr().err


def test_list_names_a_run_that_cannot_be_read_and_goes_on(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And its exit code says so."""
    made.save(storage, 3, {}).write_text('{"benchmarks": [')
    code, out, _ = run_command(capsys, "list", "--storage", str(storage))
    assert code == 2
    assert "0003_unversioned_20261128.json: is cut off" in out.splitlines()[2]


def test_a_partial_run_is_called_so_wherever_it_is_named(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In its line of `list` and `show`, and before a comparison, which uses its gates and says why one is missing."""
    ended = "ended by SIGTERM after 1 of 2 gates"
    made.save(storage, 2, {}).write_text(made.file_text({made.TEST: made.record(SLOW)}, ended))
    _, out, _ = run_command(capsys, "list", "--storage", str(storage))
    assert [f"partial: {ended}" in line for line in out.splitlines()] == [False, True]
    assert f"partial: {ended}" in run_command(capsys, "show", "2", "--storage", str(storage))[1].splitlines()[0]
    both = {made.TEST: made.record(), "t.py::test_other": made.record(asked={"scenario_digest": "other"})}
    made.save(storage, 3, both)
    _, out, _ = run_command(capsys, "compare", "2", "3", "--storage", str(storage))
    assert out.splitlines()[0].endswith(f"partial: {ended}")
    assert cells(out, "tokens_per_second")[2:5] == ["818.1", "1024", "tokens/s"]
    assert f"it has no record of this measurement, and is partial: {ended}\n" in out
    assert run_command(capsys, "compare", "1", "3", "--storage", str(storage))[1].count("partial: ") == 0


def test_show_has_the_table_of_the_latest_run(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or of the one that is named."""
    code, out, _ = run_command(capsys, "show", "--storage", str(storage))
    assert code == 0
    assert "818." in out
    assert "1024.0" in run_command(capsys, "show", "1", "--storage", str(storage))[1]


def test_show_says_what_each_gate_s_time_was_spent_on_and_what_its_answers_met(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the record has it; what took no time, and what did not happen, is left out."""
    times = {"load_s": made.figure(12.34), "rating_s": made.figure(0.5), "second_look_s": made.figure(None, "none")}
    met = {"all_accepted": made.figure(1440), "drafted_share": made.figure(0.91), "fields": ["eos", "min_tokens"]}
    waited = {"waited_for_cores": made.figure(0.123)}
    parts = {"throughput": waited, "target_alone": {"waited_for_cores": made.figure(0.04)}}
    made.save(storage, 3, {made.TEST: made.record(times=times, coverage={"exercised": met}, **parts)})
    assert [
        line for line in run_command(capsys, "show", "--storage", str(storage))[1].splitlines() if "time: " in line
    ] == [
        "time: short, 8 at once, t bfloat16 vllm draft_model d γ=3: load 12.3 s, rating 0.5 s, "
        "waited for a core 12% of the time that it wanted one, the target waited for a core 4% of the time that it "
        "wanted one"
    ]
    assert (
        "\nexercised: short, 8 at once, t bfloat16 vllm draft_model d γ=3: all accepted 1,440, drafted share 91%, "
        "fields eos min_tokens\n"
    ) in run_command(capsys, "show", "--storage", str(storage))[1]
    assert "time: " not in run_command(capsys, "show", "1", "--storage", str(storage))[1]


def test_show_of_several_runs_has_the_newest_of_each(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each run, one row for each configuration; a page's table is of one run."""
    made.save(storage, 3, {"t.py::test_other": made.record(workload={"concurrency": 64})})
    code, out, _ = run_command(capsys, "show", "1", "2", "3", "--storage", str(storage))
    assert code == 0
    assert [line[:4] for line in out.splitlines()[:3]] == ["0001", "0002", "0003"]
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("short")]
    assert [row[6] for row in rows] == ["8", "64"]
    assert "2 exact" in out
    assert "818." in out
    code, _, error = run_command(capsys, "show", "1", "2", "--into", "page.md", "--storage", str(storage))
    assert (code, "a page's table is of one run: name one, not 2" in error) == (2, True)


def test_compare_says_what_changed_and_fails_on_a_threshold(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without thresholds it only tells."""
    code, out, _ = run_command(capsys, "compare", "1", "--storage", str(storage))
    assert code == 0
    assert "changed: t vllm draft_model γ=3 on short: vllm 0.26.0 → 0.32.0\n" in out
    told = ["tokens_per_second", "higher", "1024", "818.1", "tokens/s", "−20.1", "%"]
    assert (cells(out, "tokens_per_second")[:7], cells(out, "tokens_per_second")[-1]) == (told, "worse")
    assert "mean_accepted_length" not in out
    everything = run_command(capsys, "compare", "1", "--all", "--storage", str(storage))[1]
    assert cells(everything, "mean_accepted_length")[-1] == "same"
    assert cells(everything, "itl_p99")[2:5] == ["4", "4", "ms"]
    code, out, _ = run_command(capsys, "compare", "1", "2", "--fail", "tokens_per_second:5%", "--storage", str(storage))
    assert code == 1
    assert "worse (threshold 5%)" in out
    assert run_command(capsys, "compare", "2", "1", "--fail", "tokens_per_second:5%", "--storage", str(storage))[0] == 0


def test_compare_says_once_how_far_sessions_of_the_same_code_differ(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The intervals are those of the rounds alone; where only acceptance changed, in which sessions agree, nothing."""
    made.save(storage, 3, {test: made.record(SLOW) for test in (made.TEST, "t.py::test_other")})
    out = run_command(capsys, "compare", "1", "3", "--storage", str(storage))[1]
    assert out.count("\n" + SESSIONS) == 1
    told = made.record(throughput={"per_round": {"accepted_tokens": [540] * 6}})
    made.save(storage, 4, {made.TEST: told})
    out = run_command(capsys, "compare", "1", "4", "--storage", str(storage))[1]
    assert ("mean_accepted_length" in out, SESSIONS in out) == (True, False)


def test_all_changes_what_compare_shows_and_never_its_exit_code(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a baseline run that is refused as of one that serves."""
    made.save(storage, 3, {made.TEST: made.record(gate="red")})
    for baseline, *fail in (("1",), ("3",), ("1", *FAIL), ("3", *FAIL)):
        asked = ["compare", baseline, "2", *fail, "--storage", str(storage)]
        codes = [run_command(capsys, *asked, *more)[0] for more in ((), ("--all",))]
        assert codes == [int(bool(fail))] * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"asked": {"scenario_digest": "other"}}, "run 0001 "),
        ({"throughput": {"per_round": {"seconds": [1.0] * 3, "tokens": [9] * 3}}}, "3 rounds give no interval"),
        ({"throughput": {"tokens_per_second": made.figure(None, "not timed")}}, "no tokens_per_second: not timed"),
    ],
)
def test_a_threshold_that_cannot_be_judged_is_not_kept(
    storage: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    """Whether there is no record, no figure or no interval: why is said; without a threshold nothing is asked."""
    made.save(storage, 3, {made.TEST: made.record(), "t.py::test_other": made.record(**changes)})
    code, out, _ = run_command(capsys, "compare", "1", "3", *FAIL, "--storage", str(storage))
    assert (code, said in out) == (1, True)
    assert out.splitlines()[-1] == "exit code 1: a threshold is missed, or cannot be judged, in 1 of 2 gates"
    code, out, _ = run_command(capsys, "compare", "1", "3", "--storage", str(storage))
    assert (code, "exit code" in out) == (0, False)


def test_of_many_runs_compare_reads_the_two_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, however many gates it has and however many runs lie beside it."""
    text = made.file_text(
        {f"t.py::test_{at}": made.record(asked={"scenario_digest": f"digest{at}"}) for at in range(16)}
    )
    for number in range(1, 31):
        made.save(tmp_path, number, {}).write_text(text)
    read: list[str] = []
    whole = saved.read_text
    monkeypatch.setattr(saved, "read_text", lambda path: read.append(saved.run_id(path)) or whole(path))
    code, out, _ = run_command(capsys, "compare", "1", "--storage", str(tmp_path))
    assert code == 0
    assert "not changed: 64 figures (--all shows them)" in out
    assert sorted(read) == ["0001", "0030"]


def test_compare_refuses_other_hardware_by_name(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a threshold that is a failure."""
    hardware = {"gpus": [], "processor": "Xeon", "cores": 2, "driver": None}
    made.save(storage, 3, {made.TEST: made.record(hardware=hardware)})
    code, out, _ = run_command(capsys, "compare", "1", "3", "--fail", "tokens_per_second:5%", "--storage", str(storage))
    assert code == 1
    assert out.count("other hardware: GPUs 1 × NVIDIA H100 80GB HBM3 → none") == 1


def cells(out: str, metric: str) -> list[str]:
    """The words of the metric's line."""
    return next(line.split() for line in out.splitlines() if line.strip().startswith(metric))


def test_why_gates_do_not_compare_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However many gates it keeps apart; a folder is the newest of its runs, and --help lists the metrics."""
    gates = {f"t.py::test_{at}": {"asked": {"scenario_digest": f"digest{at}"}} for at in range(4)}
    made.save(tmp_path, 1, {test: made.record(**each) for test, each in gates.items()})
    other = {"hardware": {"gpus": [], "processor": "Xeon", "cores": 2, "driver": None}}
    made.save(tmp_path, 2, {test: made.record(**each, **other) for test, each in gates.items()})
    _, out, _ = run_command(capsys, "compare", "1", str(tmp_path), "--storage", str(tmp_path))
    assert out.count("other hardware") == 1
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "chunk_gap" in capsys.readouterr().out


def test_decide_names_the_gamma_within_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of runs by number, file or folder: the fastest that keeps the limit; another aim has its own words."""
    for number, (gamma, ratio, itl) in enumerate(((2, 1.5, 0.004), (4, 2.4, 0.009)), 1):
        speedup = {"ratio": made.figure(ratio), "interval": made.figure([ratio - 0.1, ratio + 0.1])}
        asked = {"gamma": gamma, "engine_key": f"key{gamma}"}
        latency = {"itl_s": {"p95": itl, "n": 9}}
        made.save(tmp_path, number, {made.TEST: made.record(asked=asked, speedup=speedup, latency=latency)})
    code, out, _ = run_command(capsys, "decide", str(tmp_path))
    assert code == 0
    assert "use γ = 4 (draft_model d): 2.40× [2.30, 2.50]; p95 ITL 9 ms; exact (identical)" in " ".join(out.split())
    out = " ".join(run_command(capsys, "decide", str(tmp_path), "--max-p95-itl", "8ms")[1].split())
    assert "use γ = 2 (draft_model d): 1.50× [1.40, 1.60]; p95 ITL 4 ms; exact (identical); γ = 4" in out
    assert "p95 ITL 9 ms over 8 ms" in out.replace("\n ", "")
    assert "latencies of the target alone" in run_command(capsys, "decide", str(tmp_path), "--by", "latency")[1]
    with pytest.raises(SystemExit):
        main(["decide", str(tmp_path), "--max-p95-itl", "8"])
    assert "'8' is no limit of itl_p95: give a time, e.g. 8ms" in capsys.readouterr().err


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the remedy."""
    code, _, error = run_command(capsys, "show", "--storage", str(tmp_path))
    assert code == 2
    assert error == f"error: no run in {tmp_path}: save one with pytest --benchmark-autosave\n"
    with pytest.raises(SystemExit):
        main(["compare", "1", "--fail", "tokens_per_second:5"])
    assert "give a number with % or tokens/s" in capsys.readouterr().err


OF_OTHER_TOOLS = {
    "commit": '{"benchmarks": [], "commit_info": "0123456789"}',
    "machine": '{"benchmarks": [], "machine_info": ["host"]}',
    "partial": '{"benchmarks": [], "specdec": true}',
    "extra": '{"benchmarks": [{"extra_info": 3}]}',
    "record": '{"benchmarks": [{"extra_info": {"specdec": {"schema": 2, "engine": {"versions": 3}}}}]}',
    "word": '{"benchmarks": [{"extra_info": {"specdec": {"schema": 2, "acceptance": {"rate": {"value": "high"}}}}}]}',
    "truth": '{"benchmarks": [{"extra_info": {"specdec": {"schema": 2, "asked": {"gamma": true}}}}]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", OF_OTHER_TOOLS.values(), ids=OF_OTHER_TOOLS)
def test_a_file_of_another_tool_s_is_named_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Wherever it differs from pytest-benchmark's."""
    path = str(tmp_path / "other.json")
    Path(path).write_text(text)
    for command in (["show"], ["decide"], ["compare", path], ["report", "-o", str(tmp_path / "report.md")]):
        code, out, error = run_command(capsys, *command, path)
        assert (code, out, error.count("\n")) == (2, "", 1)
        assert error.startswith(f"error: {path}: ")


@pytest.mark.parametrize("command", ["show", "compare", "list --storage", "init --target t --engine vllm"])
def test_what_the_system_refuses_is_told_in_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """A name that is too long, as a folder that may not be entered; to some versions of Python it is not there."""
    code, out, error = run_command(capsys, *command.split(), name := "a" * 300)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ")
    assert name in error


def test_report_writes_the_file(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over every run, in the format that the suffix names."""
    pytest.importorskip("pytest_specdec.report")
    output = storage / "report.json"
    code, out, _ = run_command(capsys, "report", "-o", str(output), "--storage", str(storage))
    assert (code, out) == (0, f"wrote {output}\n")
    assert output.stat().st_size > 0


LOOKED_AFTER = """
import sys
started = []
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
sys.addaudithook(lambda event, _: started.append(event) if event in STARTS else None)
from pytest_specdec.cli import main
main(["doctor"])
print(started)
print(sorted(sys.modules))
"""


def test_doctor_tells_what_can_run_and_neither_imports_an_engine_nor_starts_a_process() -> None:
    """Each need is either met or has the reason why its tests would be skipped; so it takes no more than a moment."""
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_AFTER],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(sys.modules["pytest_specdec"].__path__[0]).parent)},
    )
    *told, started, modules = done.stdout.splitlines()
    topics = [line[:20].strip() for line in told]
    for topic in ("processor", "CPU energy", "pytest-benchmark", "models", "-m gpu", "multi_gpu(2)", "engine(vllm)"):
        assert topic in topics
    assert all("can run" in line or "would be skipped: " in line for line in told if line.startswith(("-m", "engine")))
    assert not {"'torch'", "'vllm'", "'transformers'"} & set(modules.strip("[]").split(", "))
    assert started == "[]"


def test_doctor_in_json_has_the_same_topics_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, strictly; no topic of the lines is lost, nor does one stand for two."""
    lines = run_command(capsys, "doctor")[1].splitlines()
    code, out, _ = run_command(capsys, "doctor", "--json")
    assert code == 0
    assert [f"{topic:<20} {told}" for topic, told in json.loads(out).items()] == lines


def test_doctor_counts_fetched_models_where_they_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the same rule as a draft's tokenizer is found."""
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "huggingface/hub/models--org--draft").mkdir(parents=True)
    assert json.loads(run_command(capsys, "doctor", "--json")[1])["models"].endswith("; 1 in the hub's cache")


def test_doctor_closes_what_it_opens_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without the counter says so, in the driver's words."""
    opened: list[str] = []

    def refuse(_: object) -> None:
        raise RuntimeError("Not Supported")

    driver = SimpleNamespace(
        nvmlInit=lambda: opened.append("open"),
        nvmlShutdown=lambda: opened.append("closed"),
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=refuse,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert hardware.energy_counter("GPU-1") == "no energy counter (Not Supported): power would be sampled, an estimate"
    assert opened == ["open", "closed"]


def test_doctor_names_python_and_each_gpu_with_its_energy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs are four topics, whatever their counters say."""
    gpus = tuple(hardware.Gpu(uuid=f"GPU-{at}", name="NVIDIA H100 80GB HBM3", index=at) for at in range(2))
    monkeypatch.setattr(hardware, "gpus", lambda: hardware.Gpus(visible=gpus, reason=None, driver="570.1"))
    topics = json.loads(run_command(capsys, "doctor", "--json")[1])
    assert topics["Python"].split()[0] == platform.python_version()
    assert [topic for topic in topics if topic.startswith("GPU")] == ["GPU 0", "GPU 0 energy", "GPU 1", "GPU 1 energy"]


def test_the_module_is_the_command() -> None:
    """`python -m pytest_specdec` and the entry point are one."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_specdec", "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(sys.modules["pytest_specdec"].__path__[0]).parent)},
    )
    assert "{demo,init,list,show,decide,compare,report,methods,doctor}" in done.stdout
