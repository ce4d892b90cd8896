"""How requests arrive, by kind: how many at once, when each is due, and which combinations are refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.workloads.conftest import refusal_of

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.run.describe import engine_error
from pytest_specdec.workloads.prompts import IdsSource
from pytest_specdec.workloads.scenario import Scenario, load_scenario
from pytest_specdec.workloads.workload import Workload

RANDOM = 'source = { format = "random", length = 4 }\ncount = 5\nmax_tokens = 8\n'
IDS = 'source = { format = "ids", prompts = [[5], [6], [7]] }\nmax_tokens = 8\n'
DIGEST_BEFORE = "d2694e0f59ff"
TRACE = 'load = { kind = "open", arrivals = "trace" }'


def scenario(text: str) -> Scenario:
    Path("x.toml").write_text(text, "utf-8")
    return load_scenario("x.toml")


def workload(text: str) -> Workload:
    return scenario(text).realise(1000, 512, lambda texts: [])


def error_of(text: str) -> str:
    return refusal_of(scenario, text)


def set_times(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    """Give the source of prompts written in the file these times."""
    monkeypatch.setattr(IdsSource, "arrivals", lambda self, count, seed: times[:count])


@pytest.mark.parametrize(
    ("load", "concurrency", "due"),
    [
        ('{ kind = "closed" }', 1, ()),
        ('{ kind = "offline" }', 5, ()),
        ('{ kind = "open", rate = 8.0, arrivals = "constant" }', 5, (0.0, 0.125, 0.25, 0.375, 0.5)),
        ('{ kind = "open", rate = 8.0, arrivals = "constant", max_seconds = 0.25 }', 3, (0.0, 0.125, 0.25)),
        ('{ kind = "open", rates = [4.0, 8.0], arrivals = "constant" }', 5, (0.0, 0.25, 0.5, 0.75, 1.0)),
    ],
)
def test_each_kind_says_its_max_concurrency_and_when(load: str, concurrency: int, due: tuple[float, ...]) -> None:
    """What lies beyond max_seconds is no part of the workload, nor of its record; a sweep begins at its lowest rate."""
    made = workload(f"{RANDOM}load = {load}")
    assert (made.concurrency, made.arrivals_s, len(made.requests)) == (concurrency, due, len(due) or 5)
    failed = engine_error(EngineSpec(backend="fake", target="t"), scenario(f"{RANDOM}load = {load}"), "it died")
    assert failed.workload.concurrency == concurrency


def test_a_closed_load_keeps_to_the_concurrency() -> None:
    assert workload(f"{RANDOM}concurrency = 3").concurrency == 3


def test_fewer_seconds_leave_the_first_requests_as_they_were() -> None:
    """A shorter measurement is the beginning of the longer one."""
    whole, part = (
        workload(f'{RANDOM}load = {{ kind = "open", rate = 2{limit} }}') for limit in ("", ", max_seconds = 1")
    )
    kept = len(part.requests)
    assert 0 < kept < 5
    assert (part.requests, part.arrivals_s) == (whole.requests[:kept], whole.arrivals_s[:kept])


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "gamma"])
def test_the_same_file_gives_the_same_schedule(arrivals: str) -> None:
    """And another seed another one, but for constant arrivals."""
    text = f'{RANDOM}load = {{ kind = "open", rate = 2, arrivals = "{arrivals}" }}'
    assert workload(text).arrivals_s == workload(text).arrivals_s
    assert (workload(text).arrivals_s == workload(f"seed = 1\n{text}").arrivals_s) is (arrivals == "constant")


def test_burstiness_1_is_poisson() -> None:
    """As vLLM has it."""
    poisson, same, bursts = (
        workload(f'{RANDOM}load = {{ kind = "open", rate = 2, {arrivals} }}').arrivals_s
        for arrivals in (
            'arrivals = "poisson"',
            'arrivals = "gamma", burstiness = 1.0',
            'arrivals = "gamma", burstiness = 0.2',
        )
    )
    assert poisson == same != bursts


def test_a_sweep_is_the_scenario_at_each_rate() -> None:
    """The rest stays as it is: name, path, prompts."""
    swept = scenario(f'{RANDOM}load = {{ kind = "open", rates = [2.0, 4.0], max_seconds = 9 }}')
    steps = swept.by_rate()
    assert [(rate, step.load.model_dump(exclude_none=True)["rate"]) for rate, step in steps.items()] == [(2, 2), (4, 4)]
    assert {(step.path, step.name, step.source, step.load.sweep) for step in steps.values()} == {
        (swept.path, swept.name, swept.source, ())
    }
    assert scenario(RANDOM).by_rate() == {}


def test_a_trace_plays_the_times_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first one on."""
    set_times(monkeypatch, 10.0, 10.0, 13.5)
    assert workload(f"{IDS}{TRACE}").arrivals_s == (0.0, 0.0, 3.5)
    assert workload(f'{IDS}load = {{ kind = "open", arrivals = "trace", time_scale = 2.0 }}').arrivals_s == (
        0.0,
        0.0,
        7.0,
    )
    assert len(workload(f'{IDS}load = {{ kind = "open", arrivals = "trace", max_seconds = 1.0 }}').requests) == 2


def test_the_times_of_a_trace_are_part_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same prompts at other moments are another workload."""
    set_times(monkeypatch, 0.0, 1.0, 2.0)
    before = scenario(f"{IDS}{TRACE}").digest
    set_times(monkeypatch, 0.0, 1.0, 3.0)
    assert scenario(f"{IDS}{TRACE}").digest != before


def test_digests_tell_loads_apart() -> None:
    """The closed load's is what it was before there were others."""
    loads = [
        "",
        'load = { kind = "offline" }',
        'load = { kind = "open", rate = 2 }',
        'load = { kind = "open", rate = 3 }',
    ]
    assert len({scenario(f"{IDS}{load}").digest for load in loads}) == len(loads)
    assert scenario(IDS).digest == scenario(f'{IDS}load = {{ kind = "closed" }}').digest == DIGEST_BEFORE


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ('"open"', "load.rate: missing: an open load needs requests a second, for example rate = 8.0"),
        (
            '"open", rate = [1, 2]',
            "load.rate: expected a number of requests a second, above 0 (several are `rates`), found [1, 2]: write for "
            "example rate = 8.0",
        ),
        (
            '"open", rate = 0',
            "load.rate: expected a number of requests a second, above 0 (several are `rates`), found 0: write for "
            "example rate = 8.0",
        ),
        ('"open", rate = 4, rates = [1, 2]', "load.rate: one rate beside a sweep of `rates`: remove one of them"),
        (
            '"open", rates = [2]',
            "load.rates: a sweep goes up: write two rates or more, each higher than the one before",
        ),
        (
            '"open", rates = [2, 4, 4]',
            "load.rates: a sweep goes up: write two rates or more, each higher than the one before",
        ),
        (
            '"open", rate = 4, arrivals = "trace"',
            "load.rate: a trace has times of its own: remove `rate`, and use time_scale to play it faster",
        ),
        (
            '"open", rates = [2, 4], arrivals = "trace"',
            'load.rates: a trace has times of its own: remove `rates`, or write arrivals = "poisson"',
        ),
        (
            '"open", rate = 4, burstiness = 2.0',
            'load.burstiness: shapes gamma arrivals only: remove it, or write arrivals = "gamma", not "poisson"',
        ),
        (
            '"open", rate = 4, time_scale = 2.0',
            'load.time_scale: stretches a trace only: remove it and change `rate`; arrivals are "poisson" here',
        ),
        (
            '"open", rate = 4, arrivals = "uniform"',
            'load.arrivals: expected "constant", "poisson", "gamma" or "trace", found "uniform":'
            ' write for example arrivals = "poisson"',
        ),
        (
            '"open", arrivals = "trace"',
            'load: arrivals = "trace" needs a source whose prompts have times: name one, or give a rate',
        ),
        ('"offline", rate = 4', "unknown key 'load.rate': the keys of load with kind = \"offline\" are kind"),
    ],
)
def test_loads_that_do_not_go_together(load: str, message: str) -> None:
    """Each with file, line, key and remedy."""
    assert error_of(f"{RANDOM}load = {{ kind = {load} }}") == f"x.toml:4: {message}"


@pytest.mark.parametrize("kind", ["offline", "open"])
def test_a_concurrency_that_the_load_does_not_heed(kind: str) -> None:
    """Also where it is the default's own value: whoever writes it expects it to be kept."""
    rate = ", rate = 4" if kind == "open" else ""
    assert error_of(f'{RANDOM}load = {{ kind = "{kind}"{rate} }}\nconcurrency = 1') == (
        "x.toml:5: concurrency: only a closed load keeps to it: remove it, or write"
        f' load = {{ kind = "closed" }}, not {kind}'
    )


def test_waves_that_the_load_does_not_heed() -> None:
    """Only a closed load has a concurrency that they could be multiplied with."""
    assert error_of(f'{RANDOM}load = {{ kind = "offline" }}\nwaves = 2').startswith(
        "x.toml:5: waves: only a closed load"
    )


def test_a_speedup_cannot_be_asked_of_an_open_load() -> None:
    """It would be null, and a limit on it never missed."""
    assert error_of(f'{RANDOM}load = {{ kind = "open", rate = 4 }}\nmin_speedup = 1.2') == (
        "x.toml:5: min_speedup: an open load sets the throughput: ask for slo and min_goodput, or use a closed load"
    )


@pytest.mark.parametrize("slo", ["", "slo = {}\n"])
def test_a_goodput_without_objectives(slo: str) -> None:
    assert error_of(f"{RANDOM}{slo}min_goodput = 0.9").endswith(
        "min_goodput: no objective is given that requests could meet: add for example slo = { ttft_ms = 200 }"
    )


def test_objectives_are_positive_milliseconds() -> None:
    assert error_of(f"{RANDOM}slo = {{ ttft_ms = 0 }}") == (
        "x.toml:4: slo.ttft_ms: expected a number of milliseconds above 0, found 0: write for example ttft_ms = 200"
    )
    assert scenario(f"{RANDOM}slo = {{ ttft_ms = 200, e2e_ms = 1.5 }}").slo.asked == {"ttft_ms": 200.0, "e2e_ms": 1.5}
