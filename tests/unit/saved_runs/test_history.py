"""Which saved record is a baseline run: keys, refusals by name, and the search in a storage."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.saved_runs.made import TEST, figure, file_text, record, save, seconds

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history import history as searching
from pytest_specdec.history.history import LATEST, RegressionGate, baselines, clashes, faults
from pytest_specdec.history.saved import UnreadableRun, read_run, saved_paths
from pytest_specdec.record import Record
from pytest_specdec.record.parts import BaselinePart
from pytest_specdec.thresholds import Threshold

H200 = {"gpus": [{"uuid": "GPU-2", "name": "NVIDIA H200", "index": 0}], "driver": "580", "processor": "X", "cores": 16}
CPU = {"gpus": [], "driver": None, "processor": "Xeon", "cores": 2}
NOISY, SLOW = seconds(1.0, 0.4, 8, 1), [1.25, 1.26, 1.24, 1.25, 1.25, 1.26]
KINDS = ((), ("missing",), ("inconclusive",), ("missing", "inconclusive"))
FIVE = (Threshold.parse("tokens_per_second:5%"),)


def part(storage: Path, now: Record, test: str = TEST, named: str = LATEST, fail_on: str = "") -> BaselinePart:
    """What the gate says of a record."""
    return RegressionGate(baselines(named, storage), FIVE, (fail_on,)).part(now, test)


def test_other_versions_are_comparable_and_listed(tmp_path: Path) -> None:
    """An upgrade changes versions, driver and options on purpose: that is what is asked about."""
    save(tmp_path, 1, {TEST: record()})
    changes = {"engine": {"versions": {"vllm": "0.32.0"}}, "asked": {"engine_key": "bbbbbbbbbbbb"}}
    now = record(**changes, hardware={"driver": "590.1"})
    found = part(tmp_path, now)
    assert found.run == "0001"
    assert found.circumstances == (
        "vllm 0.26.0 → 0.32.0",
        "driver 580.159.04 → 590.1",
        "engine configuration aaaaaaaaaaaa → bbbbbbbbbbbb",
    )
    assert found.failures == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hardware": H200}, "other hardware: GPUs 1 × NVIDIA H200 → 1 × NVIDIA H100 80GB HBM3"),
        ({"hardware": CPU}, "other hardware: GPUs none → 1 × NVIDIA H100 80GB HBM3"),
        (
            {"asked": {"parallelism": {"tensor_parallel_size": 2}}},
            "other hardware: parallelism tensor_parallel_size 2 → none",
        ),
        ({"workload": {"digest": "other"}}, "the same scenario gave other token ids"),
    ],
)
def test_what_does_not_compare_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """And a gate that has no other baseline fails, whatever its figures; also where a faulty record lies beside it."""
    save(tmp_path, 1, {TEST: record(**changes)})
    found = part(tmp_path, record())
    assert said in found.reason
    assert found.failures == (f"no baseline run: {found.reason}",)
    save(tmp_path, 2, {TEST: record(NOISY)})
    (noisy_too,) = part(tmp_path, record()).failures
    assert noisy_too.startswith("no baseline run: run 0002 ")
    assert "is no baseline run: its tokens/s is known to ±" in noisy_too
    assert noisy_too.endswith(f"; {found.reason}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"took": NOISY}, "its tokens/s is known to ±"),
        ({"gate": "red"}, "its gate is red"),
        ({"gate": "regressed"}, "its gate is regressed"),
        ({"verdict": {"outcome": "undecidable"}, "gate": "red"}, "its verdict is undecidable"),
        ({"acceptance": {"drafts": {"value": 0}}}, "its drafter drafted nothing"),
        ({"throughput": {"tokens_per_second": {"value": None}}}, "nothing was timed in it"),
    ],
)
def test_a_faulty_record_is_passed_over_and_never_fails_a_sound_one(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """Else no new record would ever be saved in its place; a run that is named is what was asked for, and fails."""
    save(tmp_path, 1, {TEST: record(**changes)})
    found = part(tmp_path, record())
    assert said in found.reason
    assert (found.run, found.failures) == (None, ())
    assert said in part(tmp_path, record(), named="1").failures[0]
    save(tmp_path, 2, {TEST: record()})
    save(tmp_path, 3, {TEST: record(**changes)})
    found = part(tmp_path, record(SLOW))
    assert (found.run, len(found.failures)) == ("0002", 1)
    assert said in found.passed_over[0]


TOO_FEW = "the baseline run has 3 of the 4 rounds that an interval needs"


def test_what_the_latest_run_s_rounds_cannot_tell_is_missing_where_this_one_s_could(tmp_path: Path) -> None:
    """It would be inconclusive for ever; as few rounds on both sides, or a run that is named, are told so."""
    save(tmp_path, 1, {TEST: record([1.0] * 3)})
    found = part(tmp_path, record())
    assert (found.run, found.failures) == ("0001", ())
    assert [(each.outcome, each.why) for each in found.changes] == [("missing", TOO_FEW)]
    (both,) = part(tmp_path, record(NOISY)).failures
    assert both.startswith(f"no baseline run: {TOO_FEW}; nor is this run one for the next: its tokens/s is known to ±")
    assert "inconclusive; 3 rounds" in part(tmp_path, record([1.0] * 3)).failures[0]
    assert "inconclusive; 3 rounds" in part(tmp_path, record(), named="1").failures[0]


def test_a_gate_is_failed_by_what_fails_alone(tmp_path: Path) -> None:
    """A figure that only more sessions would decide fails nothing, and the one that is missing does as it is asked."""
    save(tmp_path, 1, {TEST: record()})
    slower = record(
        [1.07 * each for each in (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)],
        energy={"joules_per_token": figure(None, "no meter")},
    )
    both = (*FIVE, Threshold.parse("joules_per_token:5%"))
    told = {kind: RegressionGate(baselines(LATEST, tmp_path), both, kind).part(slower, TEST) for kind in KINDS}
    assert [each.outcome for each in told[()].changes] == ["inconclusive", "missing"]
    assert [part.failed_by for part in told.values()] == [None, "missing", "inconclusive", "inconclusive"]
    assert part(tmp_path, record(SLOW)).failed_by == "worse"
    assert part(tmp_path / "none", record(), fail_on="missing").failed_by == "no baseline"


@pytest.mark.parametrize(("version", "sessions"), [("0.26.0", 2), ("0.20.0", 1)])
def test_sessions_are_of_the_same_versions(tmp_path: Path, version: str, sessions: int) -> None:
    """How far sessions differ is asked of the same code."""
    save(tmp_path, 1, {TEST: record(engine={"versions": {"vllm": version}})})
    save(tmp_path, 2, {TEST: record()})
    assert part(tmp_path, record()).changes[0].sessions == sessions


def test_an_older_run_of_enough_rounds_is_taken_before_one_of_few(tmp_path: Path) -> None:
    """Else a short run would open the gate for a slow one, which would be the next baseline run."""
    save(tmp_path, 1, {TEST: record()})
    save(tmp_path, 2, {TEST: record([1.0] * 3)})
    found = part(tmp_path, record(SLOW))
    assert found.run == "0001"
    assert "worse" in found.failures[0]


def test_a_figure_without_rounds_is_held_against_a_run_of_few(tmp_path: Path) -> None:
    """It needs no interval."""
    one, two = ({"memory": {"peak_gpu_bytes": {"value": bytes_}}} for bytes_ in (1e9, 2e9))
    save(tmp_path, 1, {TEST: record([1.0] * 3, **one)})
    gate = RegressionGate(baselines(LATEST, tmp_path), (Threshold.parse("peak_gpu_bytes:1%"),))
    (said,) = gate.part(record(**two), TEST).failures
    assert "worse" in said


def test_what_was_held_against_nothing_and_serves_none_fails(tmp_path: Path) -> None:
    """Else noisy runs would pass for ever, each without a baseline, the first of them too; without thresholds
    nobody asked."""
    (found,) = part(tmp_path, record(NOISY)).failures
    assert found.startswith(f"no baseline run: no run in {tmp_path} has this measurement")
    assert "; nor is this run one for the next: its tokens/s is known to ±" in found
    save(tmp_path, 1, {TEST: record(NOISY)})
    assert "; nor is this run one for the next: " in part(tmp_path, record(NOISY)).failures[0]
    assert RegressionGate(baselines(LATEST, tmp_path)).part(record(NOISY), TEST).failures == ()
    save(tmp_path, 2, {"other.py::test": record(asked={"scenario_digest": "other"})})
    assert part(tmp_path, record(NOISY), named="2").failures == ()  # the next session is held against that run too


def test_a_rate_that_is_hardly_known_is_no_baseline() -> None:
    """Rounds that scatter by half of their time would let any change pass as noise."""
    (said,) = faults(record(NOISY))
    assert said.startswith("its tokens/s is known to ±")


def test_a_host_s_processor_matters_where_there_is_no_gpu() -> None:
    """And does not beside a GPU, where it is a circumstance."""
    (said,) = clashes(record(hardware=CPU), record(hardware={**CPU, "cores": 16}))
    assert said == "other hardware: cores 16 → 2"
    with_gpu = record()
    assert list(clashes(with_gpu, record(hardware={"cores": 64}))) == []


def test_the_latest_run_that_may_be_a_baseline_is_taken_and_newer_ones_are_told(tmp_path: Path) -> None:
    """A run on other hardware, saved in between, does not hide the one before it."""
    save(tmp_path, 1, {TEST: record()})
    save(tmp_path, 2, {TEST: record(hardware=H200)})
    save(tmp_path, 10, {"other.py::test": record(asked={"scenario_digest": "other"})})
    found = part(tmp_path, record())
    assert found.run == "0001"
    assert "other hardware" in found.passed_over[0]


def test_a_renamed_test_finds_its_measurement(tmp_path: Path) -> None:
    """The key is what was measured; the record says under which name."""
    save(tmp_path, 1, {"old.py::test_old": record()})
    assert part(tmp_path, record()).test == "old.py::test_old"


def test_an_alias_of_a_method_has_the_same_history(tmp_path: Path) -> None:
    """Records of before there was one name for both are read so too."""
    save(tmp_path, 1, {TEST: record(asked={"method": "deepseek_mtp"})})
    assert part(tmp_path, record(asked={"method": "mtp"})).run == "0001"
    assert part(tmp_path, record(asked={"method": "eagle"})).run is None


def test_a_test_that_measured_something_else_then_has_no_baseline(tmp_path: Path) -> None:
    """The same name with another γ is another question; missing is a note, or a failure where that is asked for."""
    save(tmp_path, 1, {TEST: record(asked={"gamma": 5})})
    found = part(tmp_path, record())
    assert f"{TEST} measured something else then: γ 5 → 3" in found.reason
    assert found.failures == ()
    assert part(tmp_path, record(), fail_on="missing").failures == (f"no baseline run: {found.reason}",)


@pytest.mark.parametrize(
    ("test", "changes", "said"),
    [
        ("g5", {"gamma": 5}, "it has γ = 5 of it, and not 3; γ side by side: pytest-specdec decide 0001 RUN"),
        ("prose", {"scenario_digest": "other"}, "nearest is {}: the scenario's content other → 9d4ae2e0a3a3"),
        ("ngram-g5", {"gamma": 5, "method": "ngram"}, "it has no record of this measurement"),
    ],
)
def test_a_test_whose_parameters_changed_is_told_what_did(
    tmp_path: Path, test: str, changes: dict[str, Any], said: str
) -> None:
    """Its name has them in brackets; what differs in more is no near one, nor is another function's."""
    name = f"test_it.py::test_it[{test}]"
    save(tmp_path, 1, {name: record(asked=changes), "test_it.py::test_other": record(asked={"dtype": "float16"})})
    told = part(tmp_path, record(), named="1").reason
    assert told is not None
    assert told.endswith(said.format(name))


def test_a_run_that_was_cut_off_says_so_beside_what_it_has(tmp_path: Path) -> None:
    """It is why the other is missing."""
    run = replace(read_run(save(tmp_path, 1, {"a::b": record(asked={"gamma": 2})})), partial="ended by SIGTERM")
    told = RegressionGate(partial(searching.find_in_run, run), FIVE).part(record(), TEST).reason
    assert told is not None
    assert "it has γ = 2 of it, and not 3, and is partial: ended by SIGTERM; γ side by side: " in told


def test_of_two_engines_on_one_measurement_the_one_with_the_same_options_is_the_baseline(tmp_path: Path) -> None:
    """Two tests may differ in engine options alone."""
    save(tmp_path, 1, {"a::b": record(asked={"engine_key": "bbbbbbbbbbbb"}), "c::d": record()})
    assert part(tmp_path, record()).test == "c::d"
    assert part(tmp_path, record(asked={"engine_key": "bbbbbbbbbbbb"})).test == "a::b"


@pytest.mark.parametrize("kept", [0, 500, -2])
def test_a_file_that_is_cut_off_is_an_error_that_names_it(tmp_path: Path, kept: int) -> None:
    """Even where an older run would do: what the newer one held cannot be known."""
    save(tmp_path, 1, {TEST: record()})
    cut = save(tmp_path, 2, {TEST: record()})
    cut.write_text(file_text({TEST: record()})[:kept])
    found = part(tmp_path, record())
    assert str(cut) in found.failures[0]
    with pytest.raises(UnreadableRun, match="0002_unversioned"):
        list(map(read_run, saved_paths(tmp_path)))
    with pytest.raises(ConfigurationError, match="measure again"):
        part(tmp_path, record(), named="2")


def test_a_run_is_named_by_number_or_file_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    """With the number of the latest; one that two machines share asks which."""
    path = save(tmp_path, 7, {TEST: record()})
    assert part(tmp_path, record(), named="7").run == part(tmp_path, record(), named=str(path)).run == "0007"
    with pytest.raises(ConfigurationError, match=r"'8' is neither a file nor the number of a run in .*; the latest is"):
        baselines("8", tmp_path)
    save(tmp_path, 7, {TEST: record()}, machine="Darwin")
    with pytest.raises(ConfigurationError, match=r"say one of Darwin/7, Linux-CPython-3\.11-64bit/7"):
        baselines("7", tmp_path)
    assert part(tmp_path, record(), named="Darwin/7").run == "0007"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """By its name."""
    other = tmp_path / "other.json"
    for content in ("[]", '{"benchmarks": [1]}'):
        other.write_text(content)
        with pytest.raises(UnreadableRun, match="pytest-benchmark did not write it"):
            read_run(other)
    other.write_text('{"benchmarks": [{"extra_info": null}]}')
    assert read_run(other).records == ()
    with pytest.raises(UnreadableRun, match="cannot be read"):
        read_run(tmp_path / "absent.json")
    other.write_text('{"benchmarks": [{"extra_info": {"specdec": {"schema": 2, "asked": 3}}}], "datetime": ""}')
    with pytest.raises(
        UnreadableRun, match=r"the record of a benchmark without a name cannot be read .*: delete the file"
    ):
        read_run(other)


def test_a_search_reads_each_run_once_and_parses_only_what_names_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the oldest of a hundred runs holds the measurement, so all have to be read, and one to be parsed."""
    without = file_text({"t.py::test_other": record(asked={"scenario_digest": "other"})})
    for number in range(1, 101):
        save(tmp_path, number, {}).write_text(file_text({TEST: record()}) if number == 1 else without)
    read, parsed = note_calls(monkeypatch, "read_text"), note_calls(monkeypatch, "run_of")
    assert part(tmp_path, record()).run == "0001"
    assert [path.name[:4] for path in read] == [f"{number:04}" for number in range(100, 0, -1)]
    assert [path.name[:4] for path in parsed] == ["0001"]


def note_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Path]:
    """The files for which this function of the search is called from now on."""
    paths: list[Path] = []
    whole = getattr(searching, name)
    monkeypatch.setattr(searching, name, lambda path, *text: paths.append(path) or whole(path, *text))
    return paths
