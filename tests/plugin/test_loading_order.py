"""Each engine is loaded exactly once, target-only first, whatever the order in the file; and none that no test uses."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import SPECULATIVE, gate, own_engine

from pytest_specdec import plugin
from pytest_specdec.engines.spec import EngineSpec

TESTS = [
    gate("test_g3_again", gamma=3),
    gate("test_u_g2", target="u", gamma=2),
    gate("test_t_alone", "ar_engine"),
    gate("test_g5_and_g3", gamma=(5, 3)),
    gate("test_u_alone", "ar_engine", target="u"),
]


@pytest.mark.parametrize("seed", range(4))
def test_each_engine_is_loaded_once_and_its_target_before_it(project: Project, seed: int) -> None:
    """Two targets and three speculative engines, in four orders of the file."""
    project.tests("".join(random.Random(seed).sample(TESTS, len(TESTS))))
    project.run().assert_outcomes(passed=6)
    loads = project.loads()
    assert sorted(loads) == sorted(["t-target", "u-target", "t-draft_model-g3", "t-draft_model-g5", "u-draft_model-g2"])
    assert loads.index("t-target") < min(loads.index("t-draft_model-g3"), loads.index("t-draft_model-g5"))
    assert loads.index("u-target") < loads.index("u-draft_model-g2")


def test_a_swept_concurrency_is_a_gate_each_on_the_same_two_engines(project: Project) -> None:
    """With rounds, target's rounds and a verdict of its own, and a record that says how many were under way."""
    project.scenario(
        'source = { format = "random", length = 4 }\ncount = 6\nmax_tokens = 8\nconcurrency = [1, 2, 4]\nwaves = 2\n'
    )
    project.tests(SPECULATIVE)
    records = project.records()
    assert {name: (each.workload.concurrency, each.workload.requests) for name, each in records.items()} == {
        "test_it[t-draft_model-g3-short-c1]": (1, 2),
        "test_it[t-draft_model-g3-short-c2]": (2, 4),
        "test_it[t-draft_model-g3-short-c4]": (4, 6),
    }
    assert {each.verdict.outcome for each in records.values()} == {"identical"}
    assert len({each.workload.digest for each in records.values()}) == 3
    assert all(each.target_alone.tokens_per_second.value for each in records.values())
    assert project.loads() == ["t-target", "t-draft_model-g3"]


def test_target_only_tests_run_before_speculative_ones(project: Project) -> None:
    """A target-only test measures the reference, so that no speculative test has to."""
    project.tests(TESTS[0] + TESTS[2])
    assert project.ids() == ["test_t_alone[t-target-short]", "test_g3_again[t-draft_model-g3-short]"]


def test_the_reference_is_measured_once(project: Project) -> None:
    """Three speculative tests after a target-only one: the target decodes no scenario a second time."""
    project.tests(TESTS[0] + TESTS[2] + TESTS[3])
    lines = project.run().outlines
    assert [line for line in lines if "for reference" in line] == []
    assert len([line for line in lines if "t-target decodes" in line]) == 1


COUNTED = """
def run(self):
    with open("runs.txt", "a") as file:
        print(self.spec.label, file=file)
    return super().run()
"""


@pytest.mark.parametrize(("sampling", "for_reference"), [("", 1), ("sampling = { temperature = 1.0, seed = 1 }\n", 6)])
def test_without_a_gate_of_its_own_the_target_decodes_one_round_for_reference(
    project: Project, sampling: str, for_reference: int
) -> None:
    """Then the first of those beside; samples are others in each round."""
    project.conftest(own_engine(COUNTED))
    source = 'source = { format = "random", length = 4 }\ncount = 6\nmax_tokens = 8\n'
    project.scenario(f"{source}{sampling}rounds = 6\nwarmup_rounds = 0\n")
    project.tests(TESTS[0])
    project.run()
    runs = (project.path / "runs.txt").read_text("utf-8").split()
    assert runs.index("t-draft_model-g3") == for_reference + 1


def test_the_round_for_reference_is_no_point_of_a_sweep(project: Project) -> None:
    """Which has as many rounds as the other arm's, though the same requests at the same rate were decoded before."""
    source = 'source = { format = "random", length = 4 }\ncount = 6\nmax_tokens = 8\nrounds = 4\n'
    for name, rate in (("a", "rate = 0.1"), ("b", "rates = [0.1, 0.2]")):
        project.scenario(f'{source}load = {{ kind = "open", arrivals = "constant", {rate} }}\n', name)
    project.tests(gate(scenario=["scenarios/a.toml", "scenarios/b.toml"]))
    lines = [line for line in project.run().outlines if "t-target decodes" in line and "for reference" in line]
    assert [" a for" in line for line in lines] == [True, False, False]


def test_tests_without_engines_keep_their_order(project: Project) -> None:
    """And the engines' order is kept between them."""
    project.tests("def test_a(): pass\n" + TESTS[0] + "\ndef test_b(): pass\n" + TESTS[2] + "\ndef test_c(): pass\n")
    names = [name.partition("[")[0] for name in project.ids()]
    assert [name for name in names if len(name) == len("test_a")] == ["test_a", "test_b", "test_c"]
    assert [name for name in names if len(name) > len("test_a")] == ["test_t_alone", "test_g3_again"]


def test_an_engine_that_no_test_selects_is_not_loaded(project: Project) -> None:
    """Deselection is known before anything is loaded."""
    project.tests("".join(TESTS))
    project.run("-k", "t_alone")
    assert project.loads() == ["t-target"]


class Renamed:
    """An item as pytest before 9.2 has it: it hashes by its id, and pytest-xdist gives it another one."""

    def __init__(self, target: str) -> None:
        self.specs = [EngineSpec(backend="fake", target=target)]
        self.name = target

    def __hash__(self) -> int:
        return hash(self.name)

    __eq__ = object.__eq__


def test_every_worker_of_pytest_xdist_has_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """That in which tests were written, though each has got its group's name since, and pytest has moved them."""
    monkeypatch.setattr(plugin, "_engines_of", lambda item: item.specs)
    items = [Renamed(target) for target in "stuvwxyz"]
    moved = cast("list[pytest.Item]", items[::-1])

    config = SimpleNamespace(
        stash={plugin.SETTINGS: SimpleNamespace(arm=None)},
        pluginmanager=SimpleNamespace(hasplugin=lambda name: False),
        getoption=lambda name, default: False,
    )
    collected = cast("list[pytest.Item]", list(items))
    hook = plugin.pytest_collection_modifyitems(cast("pytest.Config", config), collected)
    next(hook)
    for item in items:
        item.name += "@group"
    collected[:] = moved
    assert list(hook) == []
    assert [item.name for item in collected] == [f"{target}@group" for target in "stuvwxyz"]
