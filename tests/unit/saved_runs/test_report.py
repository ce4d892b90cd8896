"""The report: one file that says the same in every format, that nothing in a record can break, and that scales."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.saved_runs.made import figure, merge, save

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import SavedRun, read_run
from pytest_specdec.metrics.speedup import ONE_GAMMA
from pytest_specdec.record import Figure as Kept
from pytest_specdec.record import Place, Record, from_json
from pytest_specdec.report import format_of, gates, write_report
from pytest_specdec.report import write as writing
from pytest_specdec.report.content import environments, gather
from pytest_specdec.report.curves import energy, rates, speedup
from pytest_specdec.report.drawing import MOST_LINES, Figure, Line, draw_svg, readable
from pytest_specdec.report.gates import Gate, gates_of, newest, read_runs
from pytest_specdec.report.rates import rate_tables

EVIL = "</td><script>alert('γ')</script><img src=x onerror=alert(1)>|**a**`b`[c](javascript:1)$x$_y"
SUFFIXES = {"html": "html", "markdown": "md", "csv": "csv", "json": "json"}
PERCENTILES = {"p50": 0.01, "p90": 0.02, "p95": 0.03, "p99": 0.04, "n": 9, "missing": 0}
VOID = {"meta", "br", "link", "img"}


def record(gamma: int, **changed: Any) -> Record:
    """A green record of a pair at this γ; γ = 0 is the target alone. `changed`: fields, or those of a part."""
    speculates = gamma > 0
    told = {
        "schema": 2,
        "gate": "green",
        "asked": {
            "scenario": "batch",
            "engine": "vllm",
            "engine_key": f"key{gamma}",
            "target": "constructed:tiny",
            "draft": "constructed:tiny:draft" if speculates else None,
            "method": "draft_model" if speculates else "none",
            "gamma": gamma or None,
            "dtype": "bfloat16",
        },
        "engine": {"device": "cpu", "versions": {"vllm": "0.32.0"}},
        "verdict": {"outcome": "identical", "counts": {"identical": 4}, "noise_floor_logits": figure(0.125)},
        "throughput": {"tokens_per_second": figure(100.0 + gamma)},
        "speedup": {
            "ratio": figure(1.0 + gamma / 10 if speculates else None),
            "model": {"predicted_with_verify_cost": figure(1.1 + gamma / 10 if speculates else None)},
        },
        "acceptance": {
            "rate": figure(0.8 if speculates else None),
            "mean_accepted_length": figure(2.5 if speculates else None),
            "marginal": figure([0.8**at for at in range(1, gamma + 1)]),
        },
        "latency": dict.fromkeys(("ttft_s", "itl_s", "e2e_s"), PERCENTILES),
        "energy": {"joules_per_token": figure(0.2 - gamma / 100), "net_joules_per_token": figure(0.1)},
        "hardware": {"processor": "a processor", "cores": 2},
    }
    return from_json(merge(told, changed))


def red(gamma: int = 3, detail: str = "token 3 is 8 below the target's argmax 9", **changed: Any) -> Record:
    """A record whose engine emitted a wrong token."""
    finding = {
        "request": 0,
        "round": 1,
        "outcome": "divergent",
        "detail": detail,
        "position": 5,
        "gap_logits": figure(8.0),
        "hints": ["it depends on the batch"],
        "window_start": 1,
        "expected": [21, 22, 23, 24, 9, 25],
        "seen": [21, 22, 23, 24, 3, 26],
    }
    verdict = {"outcome": "divergent", "counts": {"divergent": 1}, "max_gap_logits": figure(8.0), "findings": [finding]}
    said = {"gate": "red", "failures": [f"divergent: {detail}"], "asked": {"engine_key": "red"}}
    return record(gamma, **merge({**said, "verdict": verdict}, changed))


def run(number: int, *records: Record, folder: Path = Path("store/machine")) -> SavedRun:
    """A saved run; the day is its number."""
    return SavedRun(
        id=f"{number:04}",
        path=folder / f"{number:04}_run.json",
        datetime=f"{2020 + number // 336}-{1 + number // 28 % 12:02}-{1 + number % 28:02}T00:00:00+00:00",
        commit={"id": f"{number:040x}"},
        machine={"python_version": "3.12.3", "system": "Linux", "release": "6"},
        records=records,
    )


def sweep() -> list[dict[str, Any]]:
    """The part of a record that a load at two rates leaves."""
    return [
        {"asked": rate, "completed": rate, "tokens_per_second": 50.0 * rate, "ttft_p50_s": 0.01, "ttft_p99_s": None}
        for rate in (2.0, 1.0)
    ]


@pytest.fixture
def full(tmp_path: Path) -> list[SavedRun]:
    return full_in(tmp_path)


def full_in(path: Path) -> list[SavedRun]:
    """Two runs between which vLLM changed; the newer one has every part of a record, a power series and a red gate."""
    folder = path / "store" / "machine"
    series = path / "store" / "series" / "one.json"
    series.parent.mkdir(parents=True)
    columns = {"seconds": [0.0, 0.5, 1.0], "watts": [100.0, 300.0, None]}
    series.write_text(json.dumps({"interval_seconds": 0.5, "gpus": {"GPU-1": columns}}))
    newer = {"engine": {"versions": {"vllm": "0.33.0"}}}
    swept = record(4, load={"sweep": {"points": sweep()}}, energy={"series": figure("series/one.json")}, **newer)
    return [
        run(1, *map(record, (0, 2, 4)), folder=folder),
        run(2, record(0, **newer), record(2, **newer), swept, red(), folder=folder),
    ]


def write(runs: list[SavedRun], folder: Path, format: str) -> str:
    """The text of the report in this format."""
    path = folder / "made" / f"report.{SUFFIXES[format]}"
    write_report(runs, path, format)
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of these two runs; its fourteen drawings take long."""
    folder = tmp_path_factory.mktemp("page")
    return write(full_in(folder), folder, "html")


class Outline(HTMLParser):
    """Elements in order: each tag with its attributes, and the text in headings, captions and column heads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "tags are nested"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def of(self, *tags: str) -> list[str]:
        """The texts directly in these elements."""
        return [text for tag, text in self.texts if tag in tags]


def test_the_page_has_this_structure(page: str) -> None:
    """Verdicts first, then what red gates say, figures by what may be compared, environments."""
    outline = Outline(page)
    assert outline.open == []
    group = "batch · vllm · tiny bf16 · cpu"
    assert outline.of("h1", "h2", "h3", "figcaption") == [
        "Speculative decoding: is it exact, is it faster",
        "Verdicts",
        group,
        "✗ draft_model tiny-draft γ=3: divergent",
        "Rates",
        "Figures",
        group,
        "Speed-up against γ",
        "Acceptance by position",
        "Time to first token",
        "Time from token to token",
        "Time of a whole request",
        "Throughput against rate",
        "Completed against asked rate",
        "Time to first token against rate",
        "Energy against γ",
        "Power over time",
        "History of throughput",
        "History of speed-up",
        "History of acceptance",
        "History of energy",
        "Environment",
        "Run 0002",
        "Run 0002",
    ]


def test_the_decision_stands_at_the_top(tmp_path: Path) -> None:
    """In every format for people, before any table; what is slower is no green row."""
    interval = {"interval": figure([1.3, 1.5])}, {"ratio": figure(0.8), "interval": figure([0.7, 0.9])}
    runs = [run(1, record(0), record(4, speedup=interval[0]), record(2, speedup=interval[1]))]
    page, text = write(runs, tmp_path, "html"), write(runs, tmp_path, "markdown")
    for told, table in ((page, "<table"), (text, "| engine")):
        decision = told.index("use γ = 4 (draft")
        assert told.index("3 exact, 1 faster, 1 slower") < decision < told.index(table)
    assert [row.gate for row in gather(runs).rows] == ["green", "slower", "green"]


def test_a_red_gate_shows_both_sides_around_the_difference(full: list[SavedRun], page: str) -> None:
    """The tokens that differ are marked, and its speed is not shown."""
    assert re.findall(r"<mark>(\d+)</mark>", page) == ["9", "3"]
    assert "token 3 is 8 below the target&#39;s argmax 9" in page
    row = next(row for row in gather(full).rows if row.gate == "red")
    assert {name for name, text in row.cells if text != "–"} == {"acceptance", "tok/step"}


def test_the_page_needs_nothing_else(page: str) -> None:
    """No script, no link but to its own parts, nothing fetched; and its own policy forbids all of it."""
    outline = Outline(page)
    links = [str(attributes.get(name)) for _, attributes in outline.tags for name in ("href", "src", "xlink:href")]
    assert {link[0] for link in links if link != "None"} == {"#"}
    assert {"script", "link", "img", "iframe"} & {tag for tag, _ in outline.tags} == set()
    policy = next(each["content"] for tag, each in outline.tags if tag == "meta" and "http-equiv" in each)
    assert str(policy).startswith("default-src 'none'")


def test_every_drawing_has_a_text_in_its_place(page: str) -> None:
    """A name with the units of both axes, and a table with the values."""
    outline = Outline(page)
    labels = [str(each["aria-label"]) for _, each in outline.tags if each.get("role") == "img"]
    drawings = [tag for tag, _ in outline.tags if tag == "svg"]
    assert len(drawings) == len(labels) == len(outline.of("figcaption")) == 14
    assert len([text for text in outline.of("summary") if text.startswith("The same as a table (")]) == 14
    assert all("(" in label.split(": ", 2)[2] or "share" in label or "accepted" in label for label in labels)


@pytest.mark.parametrize("format", ["html", "markdown"])
def test_markup_in_names_texts_and_errors_stays_text(tmp_path: Path, format: str) -> None:
    """Whatever a model or an engine says, it is shown and not obeyed."""
    died = {"outcome": "engine error", "detail": EVIL}
    asked = {"target": EVIL, "draft": EVIL, "method": EVIL, "scenario": EVIL}
    evil = {"asked": asked, "engine": {"device": EVIL, "versions": {EVIL: EVIL}}}
    none = {"joules_per_token": figure(None, EVIL)}
    records = [record(2, **evil, energy=none), red(3, EVIL, **evil), record(4, **evil, verdict=died, gate="red")]
    text = write([run(1, *records), run(2, *records)], tmp_path, format)
    assert "alert" in text
    if format == "html":
        outline = Outline(text)
        assert {"script", "img"} & {tag for tag, _ in outline.tags} == set()
        assert [name for _, each in outline.tags for name in each if name.startswith("on")] == []
    else:
        assert re.findall(r"(?<!\\)<|(?<!\\)`|(?<!\\)\[", text) == []


def test_a_spreadsheet_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    """A cell that begins with an equals sign is made text."""
    text = write([run(1, record(2, asked={"method": "=cmd()", "draft": None}))], tmp_path, "csv")
    assert {row["line"] for row in csv.DictReader(text.splitlines())} == {
        "'=cmd() γ=2",
        "'=cmd()",
        "'=cmd(), predicted",
        "'=cmd(), net of idle",
    }


def test_all_formats_have_the_same_figures(full: list[SavedRun], page: str, tmp_path: Path) -> None:
    """Every point of the JSON is a line of the CSV, and every figure is in Markdown and on the page."""
    figures = json.loads(write(full, tmp_path, "json"))["figures"]
    rows = list(csv.DictReader(write(full, tmp_path, "csv").splitlines()))
    points = [row for row in rows if row["figure"] != "Gates"]
    assert len(points) == sum(len(line["x"]) for figure in figures for line in figure["lines"])
    titles = [figure["title"] for figure in figures]
    text = write(full, tmp_path, "markdown").replace("\\", "")
    assert re.findall(r"^### (.*: .*)$", text, re.MULTILINE) == titles
    captions = Outline(page).of("figcaption")
    assert captions == [title.split(": ")[0] for title in titles]


def test_markdown_has_whole_tables(full: list[SavedRun], tmp_path: Path) -> None:
    """Each row has as many cells as its head, and its head follows an empty line."""
    lines = write(full, tmp_path, "markdown").splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("|") and not lines[at - 1].startswith("|")]
    assert len(heads) == 16
    for head in heads:
        table = lines[head : next(at for at in range(head, len(lines) + 1) if not lines[at : at + 1] or not lines[at])]
        assert lines[head - 1] == ""
        assert len(table) >= 3
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_json_is_standard_json(tmp_path: Path) -> None:
    """A figure that is not finite is null, as everywhere."""
    text = write([run(1, record(2, throughput={"tokens_per_second": figure(float("nan"))}))], tmp_path, "json")
    assert json.loads(text, parse_constant=pytest.fail)["rows"][0]["gate"] == "green"


def test_three_times_the_runs_are_three_times_the_work(
    tmp_path: Path, lines_executed: Callable[[Callable[[], object]], int]
) -> None:
    """Not nine times, by the lines of this package that are executed."""
    few, many = (history_of(count) for count in (20, 60))
    least = lines_executed(lambda: write(few, tmp_path, "json"))
    assert 2 < lines_executed(lambda: write(many, tmp_path, "json")) / least < 3.5


def test_a_line_is_drawn_where_its_axes_say_and_broken_at_a_gap() -> None:
    """Halves of what is written on an axis are halfway; a value below zero lowers the axis."""
    drawing = draw_svg(Figure("k", "g", "x", "y", (Line("<a>", (0.0, 2.0, 4.0, 6.0), (0.0, 2.0, None, -2.0)),)))
    first, second, last = map(point, re.search(r'd="M(\S+ \S+)L(\S+ \S+)M(\S+ \S+)" fill="none"', drawing).groups())
    zero, two = (float(at) - 3 for at in re.findall(r'y="(\S+)" text-anchor="end">[02]<', drawing))
    assert (first[1], second[1]) == (zero, two)
    assert last[1] - zero == pytest.approx(zero - two, abs=0.2)
    assert last[0] - second[0] == pytest.approx(2 * (second[0] - first[0]), abs=0.2)


def test_doublings_are_equally_far_apart() -> None:
    """On the axis of concurrency, whose places are those that were measured."""
    drawing = draw_svg(Figure("k", "g", "x", "y", (Line("a", (1.0, 4.0, 16.0), (1.0, 1.0, 1.0)),), x_log=True))
    one, four, sixteen = (
        float(at) for at in re.findall(r'x="(\S+)" y="196" text-anchor="middle">(?:1|4|16)<', drawing)
    )
    assert sixteen - four == pytest.approx(four - one, abs=0.2)


def test_places_that_lie_close_have_no_text_on_text() -> None:
    """Those that would run into the one before are left out."""
    places = (1.0, 4.0, 16.0, 64.0, 80.0, 88.0, 96.0, 128.0, 256.0)
    drawing = draw_svg(Figure("k", "g", "x", "y", (Line("a", places, (1.0,) * len(places)),), x_log=True))
    told = re.findall(r'x="(\S+)" y="196" text-anchor="middle">(\d+)<', drawing)
    assert [text for _, text in told] == ["1", "4", "16", "64", "88", "128", "256"]
    assert min(float(after[0]) - float(before[0]) for before, after in pairwise(told)) > 12


def test_of_many_points_one_that_stands_alone_is_seen() -> None:
    """No line leads to it, and not each point has a marker."""
    values = tuple(None if number % 2 else 1.0 for number in range(60))
    drawing = draw_svg(Figure("k", "g", "x", "y", (Line("a", tuple(map(float, range(60))), values),)))
    assert re.search(r'<path d="([^"]*)" fill="var', drawing)[1].count("M") == 30


def point(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def test_one_gamma_is_a_whole_number_on_its_axis() -> None:
    """Between 2.95 and 3.05 there is none to be read."""
    drawing = draw_svg(Figure("k", "g", "γ", "y", (Line("a", (3.0,), (1.5,)),)))
    assert re.findall(r">([23][.\d]*)<", drawing) == ["3"]


def test_a_page_over_many_runs_stays_small_and_tells_where_versions_changed(tmp_path: Path) -> None:
    """Points lie closer in it; there are no more figures."""
    page = write(history_of(180), tmp_path, "html")
    assert len(page) < 2_000_000
    assert "run 161: vllm 0.7 → 0.8" in page


def history_of(count: int) -> list[SavedRun]:
    """So many runs of five gates, with a version that changed every twenty of them."""
    return [
        run(number, *(record(gamma, engine={"versions": {"vllm": f"0.{number // 20}"}}) for gamma in range(5)))
        for number in range(count)
    ]


def test_runs_are_whole_where_they_are_shown_in_whatever_order_they_are_named(tmp_path: Path) -> None:
    """By their time, not by their place on the command line."""
    paths = [save(tmp_path, number, {"t.py::test_2": record(2)}) for number in (1, 2)]
    paths[1].write_text(paths[1].read_text().replace("2026-11-28T", "2026-11-27T"))
    for order in (paths, paths[::-1]):
        assert gather(read_runs(order)) == gather([read_run(path) for path in paths])


def test_of_very_many_runs_some_are_read_and_every_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evenly from the newest back, and an old one where nothing later has its engine."""
    monkeypatch.setattr(gates, "MOST_RUNS", 4)
    paths = [save(tmp_path, number, {"t.py::test_it": record(9 if number == 3 else 1)}) for number in range(1, 13)]
    assert sorted(each.id for each in read_runs(paths)) == ["0003", "0006", "0009", "0012"]
    paths[1].write_text(paths[1].read_text().replace('"device": "cpu"', '"device": "NVIDIA H100"'))
    assert sorted(each.id for each in read_runs(paths)) == ["0002", "0003", "0006", "0009", "0012"]
    paths[1].write_text(paths[1].read_text().replace('"device": "NVIDIA H100"', '"device": "cpu"'))
    monkeypatch.setattr(gates, "MOST_RUNS", 3)
    assert sorted(each.id for each in read_runs(paths)) == ["0003", "0004", "0008", "0012"]


def test_of_each_configuration_the_newest_run_counts() -> None:
    """An older gate gives way to a newer one of the same engine and scenario, however they are given."""
    old, new = (
        run(1, record(2), record(4)),
        run(2, record(2, throughput={"tokens_per_second": figure(7.0)}), red(2, asked={"engine_key": "key2"})),
    )
    content = gather([new, old])
    told = [(row.label.partition(",")[0][-3:], row.gate) for row in content.rows]
    assert told == [("γ=2", "green"), ("γ=2", "red"), ("γ=4", "green")]
    assert dict(content.rows[0].cells)["tokens/s"] == "7.0"


def test_runs_of_one_gamma_each_explain_each_other() -> None:
    """Steps of 1.6 and 2.4 target steps lie on the line through both; what is set up otherwise has no part in it."""
    first, second = in_sweep(1, 0.008), in_sweep(3, 0.012)
    other = in_sweep(2, 0.02, engine={"versions": {"vllm": "0.33.0"}})
    split = in_sweep(4, 0.02, asked={"parallelism": {"tensor_parallel_size": 2}})
    ahead = in_sweep(5, 0.02, engine={"details": {"async_scheduling": True}})
    lossy = in_sweep(6, 0.02, gate="unjudged", asked={"unjudged": "to know"}, verdict={"outcome": "not judged"})
    content = gather([run(1, first), run(2, second), run(3, other, split, ahead, lossy)])
    predicted = {row.label[-3:]: dict(row.cells)["predicted"] for row in content.rows}
    assert predicted == {
        "γ=1": f"{1.8 / 1.6:.2f}",
        "γ=3": f"{(1 - 0.8**4) / 0.2 / 2.4:.2f}",
        "γ=2": "–",
        "γ=4": "–",
        "γ=5": "–",
        "γ=6": "–",
    }
    assert any("tensor_parallel_size 2" in row.group for row in content.rows)
    assert first.speedup.model.predicted.value is None


def in_sweep(gamma: int, round_s: float, **changed: Any) -> Record:
    """A record that could not yet predict anything."""
    model = {
        "target_step_s": figure(0.005),
        "acceptance_per_token": figure(0.8),
        "step_s": figure(round_s),
        "predicted": figure(None, ONE_GAMMA),
        "predicted_with_verify_cost": figure(None, ONE_GAMMA),
    }
    delivered = {"delivered_tokens_per_step": figure(2.0)}
    change = dict.fromkeys(("output_length", "tokens_per_step", "seconds_per_request"), 1.0)
    whole = figure({**change, "step_time": round_s / 0.005})
    return record(gamma, speedup={"model": model, "decomposition": whole}, acceptance=delivered, **changed)


def test_rows_of_one_name_are_told_apart_and_what_no_gate_has_is_no_column() -> None:
    """Two tests of one engine; energy that was not measured."""
    none = {"energy": {"joules_per_token": figure(None)}}
    records = [
        replace(record(gamma, **none), place=Place(test=f"t.py::test_{at}")) for at, gamma in enumerate((2, 2, 4))
    ]
    shown = gather([run(1, *records)]).rows
    assert [row.label.rpartition("γ=")[2] for row in shown] == ["2, test_0", "2, test_1", "4"]
    assert "tokens/s" in dict(shown[0].cells)
    assert "J/token" not in dict(shown[0].cells)


def test_runs_of_two_machines_with_the_same_number_are_two_runs() -> None:
    """pytest-benchmark counts in each machine's folder."""
    here, there = (run(1, record(2, engine={"device": device}), folder=Path(device)) for device in ("one", "other"))
    assert len(newest(gates_of([here, there]))) == 2


def test_history_leaves_red_gates_out_and_names_what_changed() -> None:
    """Only changes are named, the driver's as well."""
    on_driver = {"hardware": {"driver": "580"}}
    runs = [run(1, record(2)), run(2, record(2)), run(3, record(2, gate="red")), run(4, record(2, **on_driver))]
    figure = next(each for each in gather(runs).figures if each.kind == "History of throughput")
    assert figure.lines[0].x == (1.0, 2.0, 4.0)
    assert figure.marks == ((4.0, "driver none → 580"),)


def test_one_run_has_no_history() -> None:
    """A line through one point says nothing."""
    assert [figure.kind for figure in gather([run(1, record(2))]).figures if "History" in figure.kind] == []


def test_what_was_not_measured_is_not_drawn() -> None:
    """No energy, no energy figure; a gap in a line stays a gap."""
    none = figure(None, "no counter")
    unmeasured = {"energy": {"joules_per_token": none, "net_joules_per_token": none}}
    unpredicted = {"model": {"predicted_with_verify_cost": figure(None)}}
    content = gather([run(1, record(2, **unmeasured), record(4, **unmeasured, speedup=unpredicted))])
    kinds = {figure.kind: figure for figure in content.figures}
    assert "Energy against γ" not in kinds
    assert kinds["Speed-up against γ"].lines[1].y == (1.3, None)
    assert "J/token: no counter" in content.notes


def test_speed_and_energy_stand_beside_what_they_are_compared_with() -> None:
    """The prediction goes with its method's line, and the target's energy is the level."""
    gates = [Gate(run(1), record(gamma), "cpu") for gamma in (0, 2, 4)]
    assert [(line.beside, line.modelled) for line in speedup("g", gates[1:]).lines] == [
        ("", False),
        ("draft_model tiny-draft", True),
    ]
    assert energy("g", gates).level == 0.2


def test_a_sweep_of_rates_shows_the_target_beside_the_engine() -> None:
    """By rising rate, in milliseconds, the target's points once; what no request gave is left out."""
    swept = {"sweep": {"points": sweep(), "target_points": sweep()}}
    gates = [Gate(run(1), record(gamma, load=swept), "cpu") for gamma in (0, 2)]
    throughput, _, first = rates("g", gates)
    assert [line.name for line in throughput.lines] == ["target only", "draft_model tiny-draft γ=2"]
    assert (throughput.lines[0].x, throughput.lines[0].y) == ((1.0, 2.0), (50.0, 100.0))
    assert [(line.name, line.y) for line in readable(first)[0].lines] == [
        ("target only, p50", (10.0, 10.0)),
        ("draft_model tiny-draft γ=2, p50", (10.0, 10.0)),
    ]


def test_rates_are_a_table_of_both_arms(tmp_path: Path) -> None:
    """In the page and in Markdown, below what saturates them; the target alone, of whose gate it is too, once."""
    swept = {"sweep": {"points": sweep(), "target_points": sweep()}}
    runs = [run(1, record(0, load=swept), record(2, load=swept), record(4, load=swept, gate="red"))]
    arms = ["none", "none", *["target", "draft_model"] * 2]
    lines = [line for line in write(runs, tmp_path, "markdown").splitlines() if line.endswith("| no |")]
    assert [line.replace("\\", "") for line in lines] == [
        f"| {rate} | {arm} | {rate}.0 | {50 * rate} | 10 | – | – | – | – | no |"
        for rate, arm in zip((1, 2, 1, 1, 2, 2), arms, strict=True)
    ]
    assert re.findall(r'<td data-name="arm">(.*?)</td>', write(runs, tmp_path, "html")) == arms


def test_rates_of_two_devices_are_told_apart() -> None:
    """Gates of one name on two cards are two tables."""
    swept = {"sweep": {"points": sweep(), "target_points": sweep()}}
    names = [name for name, _ in rate_tables([record(2, load=swept, engine={"device": at}) for at in ("A", "B")])]
    assert [name.partition(": ")[0].rpartition(", ")[2] for name in names] == ["A", "B"]


def test_the_environment_says_where_vllms_core_has_a_process_of_its_own() -> None:
    """Since it may be another speed; elsewhere nothing is said of it."""
    gates = [
        Gate(run(1), record(2, engine={"details": details}), "cpu") for details in ({}, {"core_in_own_process": True})
    ]
    assert [dict(facts).get("vLLM's core") for facts in environments(gates)] == [None, "in a process of its own"]


def test_too_many_lines_are_shared_out_evenly() -> None:
    """Seven lines make figures of four and three, and lines of one name are told apart."""
    figure = Figure("k", "g", "x", "y", tuple(Line("a", (1.0,), (1.0,)) for _ in range(MOST_LINES + 1)))
    parts = readable(figure)
    assert [(part.part, len(part.lines)) for part in parts] == [("1 of 2", 4), ("2 of 2", 3)]
    assert len({line.name for part in parts for line in part.lines}) == MOST_LINES + 1


@pytest.mark.parametrize("name", [None, "series/none.json", "../store/series/one.json", "/etc/hostname"])
def test_power_is_drawn_only_from_a_series_that_lies_in_the_storage(full: list[SavedRun], name: str | None) -> None:
    """No series, none there, or a way out of the storage: no figure, and no error."""
    newer = full[1]
    records = list(newer.records)
    records[2] = replace(records[2], energy=replace(records[2].energy, series=Kept(name)))
    full[1] = replace(newer, records=tuple(records))
    assert [figure for figure in gather(full).figures if figure.kind == "Power over time"] == []


@pytest.mark.parametrize("text", ['{"gpus":', "{}", "[]", '{"gpus": []}', '{"gpus": {"GPU-1": 3}}'])
def test_a_broken_series_is_named(full: list[SavedRun], tmp_path: Path, text: str) -> None:
    """With the remedy."""
    (tmp_path / "store/series/one.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"one\.json: not a power series .* delete the file"):
        gather(full)


def test_an_unknown_format_or_suffix_names_the_known_ones(tmp_path: Path) -> None:
    """Before anything is gathered."""
    with pytest.raises(
        ConfigurationError, match="'pdf' is no format of a report; take one of html, markdown, csv, json"
    ):
        write_report([], tmp_path / "a.pdf", "pdf")
    with pytest.raises(ConfigurationError, match=r"a\.pdf: a report ends in \.html, "):
        format_of(tmp_path / "a.pdf")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A folder stands there."""
    with pytest.raises(ConfigurationError, match="the report cannot be written to"):
        write_report([run(1, record(2))], tmp_path, "csv")


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_lines_and_words_stand_out_from_the_page(theme: int) -> None:
    """Contrast by WCAG 2.2: 3 to 1 for what is drawn, 4.5 to 1 for text, on a bright and on a dark page."""
    style = Path(writing.__file__).with_name("templates") / "report.css"
    blocks = re.findall(r":root \{(.*?)\}", style.read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[theme]))
    page = luminance(colours["page"])
    for name in [f"line-{number}" for number in range(1, 7)] + ["ink", "soft", "red", "green", "slower"]:
        ours = luminance(colours[name])
        contrast = (max(page, ours) + 0.05) / (min(page, ours) + 0.05)
        assert contrast >= (3 if name.startswith("line") else 4.5), (name, contrast)


def luminance(colour: str) -> float:
    """Relative luminance of a colour of sRGB, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
