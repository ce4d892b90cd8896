"""How surely a gate sees a fault of the KV cache: planted in places drawn at random, and judged as a gate judges.

Each request of a batch has one fault: in a layer, a head and a step that a seeded generator draws, within the first
EARLY tokens of its answer. The first 16, 64 and 256 tokens of that answer are then judged, by themselves, with the
calibration of the sound engine: its noise floor, its near-ties, and the sound target's rating of every token that
differs.
What was seen is written to docs/detection.md, and for code into the package, verdict/detection.json.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.engines.faulty_worker import OPTIONS, PROMPT, FaultyWorker

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.host import WorkerEngine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation, Run, Score
from pytest_specdec.hardware import cores, processor
from pytest_specdec.models import parse
from pytest_specdec.models.recipe import SmolLM2Recipe
from pytest_specdec.run.session import Session
from pytest_specdec.verdict import coverage
from pytest_specdec.verdict.coverage import LEVEL, MEMORY, ONCE, PLAIN, SOUND, TEXT
from pytest_specdec.verdict.equivalence import Calibration, Certified, Outcome, judge
from pytest_specdec.verdict.reference import Reference, Sample, calibrate
from pytest_specdec.workloads.scenario import load_scenario
from pytest_specdec.workloads.workload import Request, Workload

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "detection.md"
DATA = Path(coverage.__file__).with_name("detection.json")
PROSE = ROOT / "scenarios" / "prose.toml"
TOGETHER = '''

def run_together(self):
    """Decode all requests in one batch, where they are equally long; the target alone."""
    import torch

    if len(self._answers) == 1 or self._draft is not None:
        return run_one_by_one(self)
    started = time.perf_counter()
    ids = torch.cat([each.arguments["inputs"] for each in self._answers])
    asked = {**self._answers[0].arguments, "inputs": ids, "attention_mask": torch.ones_like(ids)}
    rows = self._target.generate(**asked)[:, ids.shape[1] :].tolist()
    self._drafts, self._seconds = [], time.perf_counter() - started
    for answer, row in zip(self._answers, rows):
        answer.token_ids, answer.started_s, answer.came = row, 0.0, [[0.0, 0], [self._seconds, len(row)]]


run_one_by_one = TransformersBackend.run
TransformersBackend.run = run_together
'''
EARLY = 8  # a fault comes while so many tokens are decoded
RARE = 20  # steps, of which one has a fault, for all of an answer
OLD = 24  # tokens back, as far as the pair with memory reads
ANYWHERE = {"layer": None, "head": None, "request": None, "rejection": None, "size": 1}

pytestmark = pytest.mark.cpu


@dataclass(frozen=True)
class Subject:
    """A model, how many answers are decoded at once, of how many tokens, and how often anew; `draft`: for rollbacks."""

    target: str
    draft: str
    answers: int
    tokens: tuple[int, ...] = (16, 64, 256)
    assisted: int = 24
    assisted_tokens: int = 64
    again: int = 1
    calibration: int = 8


@dataclass(frozen=True)
class Kind:
    """A fault, and what of its place is drawn: one layer, one head of it, how old the entry is.

    `rows`: every how many-th answer has one. `every`: one step of so many has it; none is one of the first steps.
    `assisted`: it needs a drafter.
    """

    fault: str | None
    one: tuple[str, ...] = ()
    age: int = 1
    size: int = 1
    rows: int = 1
    every: int = 0
    assisted: bool = False

    def places(self, draw: random.Random, sizes: Mapping[str, int], tokens: int) -> list[dict[str, Any]]:
        """The places of one answer, drawn."""
        rarely = [step for step in range(tokens) if self.every and draw.random() < 1 / self.every]
        steps = rarely if self.every else [draw.randrange(EARLY)]
        return [self.place(draw, sizes, step) for step in steps]

    def place(self, draw: random.Random, sizes: Mapping[str, int], step: int) -> dict[str, Any]:
        """A place, drawn; `step` counts from the first token that is decoded."""
        position = PROMPT + step - 1 - draw.randrange(self.age)
        drawn = {name: draw.randrange(sizes[name]) for name in self.one}
        rejection = 1 + draw.randrange(3)
        at = {"position": position, "length": PROMPT + step, "rejection": rejection}
        return {**ANYWHERE, **at, "size": self.size, **drawn}


LAYER, HEAD = ("layer",), ("layer", "head")
ENTRY = {  # faults of entries
    "a stale entry": Kind("of another request"),
    "a stale entry of one layer": Kind("of another request", LAYER),
    "a zeroed entry of one layer": Kind("zeroed", LAYER),
    "a dropped entry of one layer": Kind("dropped", LAYER),
    "two requests' entries of one layer swapped": Kind("swapped", LAYER, rows=2),
    "a stale entry of one head of one layer": Kind("of another request", HEAD),
    "a zeroed entry of one head of one layer": Kind("zeroed", HEAD),
    "entries of one layer shifted by a slot": Kind("shifted by a slot", LAYER),
    f"an entry of one layer, up to {OLD} tokens old, overwritten": Kind("of another request", LAYER, OLD),
    "a block of another request": Kind("block of another request", (), OLD),
}
KINDS = {
    SOUND: Kind(None),
    **ENTRY,
    f"a stale entry of one layer in one step of {RARE}": Kind("of another request", LAYER, every=RARE),
    "positions off by one from a token on": Kind("positions off by one"),
    "keys in fp8 (e4m3) from a token on": Kind("keys in fp8"),
    "an entry off by 1 step of bfloat16": Kind("noisy"),
    "an entry off by 32 steps of bfloat16 (a quarter)": Kind("noisy", size=32),
    "a rejected entry kept (rollback one too few)": Kind("rollback one too few", assisted=True),
    "an accepted entry dropped (rollback one too many)": Kind("rollback one too many", assisted=True),
}
PAGED = (
    SOUND,
    "a stale entry",
    "a stale entry of one layer",
    "a zeroed entry of one layer",
    "a stale entry of one head of one layer",
    "a zeroed entry of one head of one layer",
    f"an entry of one layer, up to {OLD} tokens old, overwritten",
    "a block of another request",
    "keys in fp8 (e4m3) from a token on",
    "an entry off by 32 steps of bfloat16 (a quarter)",
)


SUBJECTS = {
    MEMORY: Subject("constructed:tiny?memory=24", "constructed:tiny:draft?memory=24", 100),
    ONCE: Subject("constructed:tiny?memory=24&readers=2", "constructed:tiny:draft?memory=24", 60, (16, 64)),
    PLAIN: Subject("constructed:tiny", "constructed:tiny:draft", 24),
    TEXT: Subject("smollm2", "smollm2?layers=4", 20, assisted_tokens=16, calibration=2),
}
TABLES = {
    **{f"transformers {name}": subject for name, subject in SUBJECTS.items()},
    f"vllm {MEMORY}": replace(SUBJECTS[MEMORY], tokens=(16, 64)),
    f"vllm {PLAIN}": replace(SUBJECTS[PLAIN], answers=32, tokens=(16, 64)),
}
LEAST = {MEMORY: 0.95}  # share of each fault of entries that is seen within 64 tokens


def start(session: Session, backend: str, subject: Subject, **drafting: Any) -> FaultyWorker:
    """A worker with the subject; Transformers decodes all of a batch together, unless there is a drafter."""
    spec = EngineSpec(
        backend=backend, target=subject.target, dtype="float32", max_model_len=512, options=OPTIONS[backend], **drafting
    )
    return FaultyWorker(spec, session.settings, TOGETHER if backend == "transformers" else "")


def sizes(engine: FaultyWorker) -> dict[str, int]:
    """How many layers, and KV heads in each, a place can be drawn from."""
    told = engine.description.details["architecture"]
    return {"layer": told["num_hidden_layers"], "head": told["num_key_value_heads"]}


@dataclass(frozen=True)
class Bench:
    """A sound engine with its calibration, and the workload that faults are planted into."""

    engine: FaultyWorker
    subject: Subject
    workload: Workload
    reference: Reference

    def seen(self, kind: Kind, name: str) -> Iterator[list[tuple[str, ...]]]:
        """For each planting, the names of the verdicts on it: at each number of tokens."""
        for again in range(self.subject.again * kind.rows):
            draw = random.Random(f"{name} {again}")
            rows = range(0, len(self.workload.requests), kind.rows)
            drawn = [kind.places(draw, sizes(self.engine), self.subject.tokens[-1]) for _ in rows]
            places = [{**place, "request": row} for row, each in zip(rows, drawn, strict=True) for place in each]
            self.engine.plant(kind.fault, *places)
            run = one_pass(self.engine, self.workload)
            self.engine.plant(None)
            verdicts = self.judged(dict(enumerate(run.generations)), self.subject.tokens)
            yield from (by_tokens(verdicts[row : row + kind.rows]) for row in rows)

    def seen_assisted(self, drafted: FaultyWorker, kind: Kind, name: str) -> Iterator[list[tuple[str, ...]]]:
        """The same with a drafter, one answer after another."""
        draw, subject = random.Random(name), self.subject
        requests = self.workload.requests[: subject.assisted]
        tokens = tuple(each for each in subject.tokens if each <= subject.assisted_tokens)
        for row, request in enumerate(requests):
            drafted.plant(kind.fault, *kind.places(draw, sizes(self.engine), tokens[-1]))
            shorter = Workload("assisted", (replace(request, max_tokens=tokens[-1]),), 1)
            (answer,) = one_pass(drafted, shorter).generations
            yield by_tokens(self.judged({row: answer}, tokens))

    def judged(self, answers: Mapping[int, Generation], tokens: Sequence[int]) -> list[tuple[str, ...]]:
        """The gate's verdict on the first tokens of each request's answer, for each number of them."""
        scores = self._rescored({row: each for row, each in answers.items() if not self._is_certified(row, each)})
        return [
            tuple(self._outcome(row, answer, scores.get(row, ()), count) for count in tokens)
            for row, answer in answers.items()
        ]

    def _is_certified(self, row: int, answer: Generation) -> bool:
        count = len(answer.token_ids)
        certified = self.reference.calibration.certified[row]
        return any(each.generation.token_ids[:count] == answer.token_ids for each in certified)

    def _rescored(self, answers: Mapping[int, Generation]) -> dict[int, tuple[Score, ...]]:
        requests = [self.workload.requests[row] for row in answers]
        rows = self.engine.score(requests, [each.token_ids for each in answers.values()]) if answers else ()
        return dict(zip(answers, rows, strict=True))

    def _outcome(self, row: int, answer: Generation, scores: Sequence[Score], count: int) -> str:
        calibration, request = self.reference.calibration, replace(self.workload.requests[row], max_tokens=count)
        certified = tuple(
            Certified(cut(each.generation, count), each.scores[:count]) for each in calibration.certified[row]
        )
        run, workload = Run((cut(answer, count),), None, 0.0), Workload("planted", (request,), 1)
        own = Calibration((certified,), calibration.floor, calibration.facts)
        return judge(workload, own, {0: run}, lambda *_: [scores[:count]]).outcome.value


def cut(answer: Generation, tokens: int) -> Generation:
    """An answer as it would be with that length limit."""
    return replace(answer, token_ids=answer.token_ids[:tokens], finish_reason="length", chunks=())


def by_tokens(verdicts: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """For each number of tokens, the names of all verdicts on one planting."""
    return list(zip(*verdicts, strict=True))


def prompts(engine: WorkerEngine, count: int) -> list[tuple[int, ...]]:
    """Random tokens for a constructed model, and for a real one windows of the suite's English prompts."""
    if parse(engine.spec.target) != SmolLM2Recipe():
        draw = random.Random(19)
        return [tuple(draw.choices(range(3, engine.description.vocabulary), k=PROMPT)) for _ in range(count)]
    scenario, about = load_scenario(PROSE), engine.description
    read = scenario.realise(about.vocabulary, about.context, engine.encode, engine.encode_messages)
    ids = tuple(chain.from_iterable(request.prompt_ids for request in read.requests))
    step = (len(ids) - PROMPT) // count
    return [ids[row * step : row * step + PROMPT] for row in range(count)]


def bench(engine: FaultyWorker, subject: Subject) -> Bench:
    """The sound engine decodes, and the calibration is taken as a gate takes it."""
    asked = tuple(Request(ids, subject.tokens[-1]) for ids in prompts(engine, subject.answers))
    workload = Workload("plantings", asked, len(asked))
    engine.plant(None)
    reference = calibrate(engine, workload, one_pass(engine, workload), Sample(subject.calibration), time.perf_counter)
    return Bench(engine, subject, workload, reference)


Counts = list[Mapping[str, Any]]
Seen = dict[str, Counts]


def counted(plantings: Sequence[list[tuple[str, ...]]], tokens: Sequence[int]) -> Counts:
    """For each number of tokens: how many plantings are red, of how many, and under which names."""
    return [one_count(count, [each[at] for each in plantings]) for at, count in enumerate(tokens)]


def exact_interval(red: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share by Clopper and Pearson (Biometrika 26, 1934)."""
    from scipy.stats import binomtest  # half a second, which each worker would pay

    found = binomtest(red, of).proportion_ci(LEVEL, "exact")
    return float(found.low), float(found.high)


def one_count(tokens: int, plantings: Sequence[tuple[str, ...]]) -> Mapping[str, Any]:
    """A planting is red where any verdict on it is."""
    names = [{name for name in each if not Outcome(name).passes} for each in plantings]
    red = [each for each in names if each]
    low, high = exact_interval(len(red), len(names))
    told = Counter(name for each in red for name in each)
    return {"tokens": tokens, "red": len(red), "of": len(names), "interval": [low, high], "names": dict(told)}


@pytest.mark.parametrize("table", TABLES)
def test_faults(specdec_session: Session, table: str) -> None:
    """All kinds in Transformers; in vLLM a part of them, which comes over the paged cache."""
    backend, name = table.split()
    with closing(start(specdec_session, backend, TABLES[table])) as engine:
        sound = bench(engine, TABLES[table])
        kinds = {told: kind for told, kind in KINDS.items() if backend == "transformers" or told in PAGED}
        seen = each_kept(table, sound, kinds, partial(decoded, specdec_session, sound, name))
    is_as_demanded(name, seen)


def each_kept(key: str, sound: Bench, kinds: Mapping[str, Kind], measure: Callable[[str, Kind], Counts]) -> Seen:
    """The counts of each kind, kept one by one; with DETECTION=resume what an earlier run has kept stays."""
    earlier = read_data().get(key, {})
    same = os.environ.get("DETECTION") == "resume" and earlier.get("circumstances") == circumstances(sound)
    seen: Seen = earlier["faults"] if same else {}
    for told, kind in kinds.items():
        if told not in seen:
            seen[told] = measure(told, kind)
            keep(key, sound, seen)
    return seen


def decoded(session: Session, sound: Bench, name: str, told: str, kind: Kind) -> Counts:
    """The counts of one kind; with a drafter those of fewer tokens, where more would take too long."""
    subject, seed = sound.subject, f"{name} {told}"
    if not kind.assisted:
        return counted(list(sound.seen(kind, seed)), subject.tokens)
    drafting = {"draft": subject.draft, "method": "draft_model", "gamma": 4}
    with closing(start(session, "transformers", subject, **drafting)) as drafted:
        plantings = list(sound.seen_assisted(drafted, kind, seed))
    return counted(plantings, [each for each in subject.tokens if each <= subject.assisted_tokens])


def is_as_demanded(name: str, seen: Seen) -> None:
    """Sound answers are never red; one entry at fault is, in the least share of places with memory, in none without."""
    assert [each["red"] for each in seen[SOUND]] == [0] * len(seen[SOUND])
    one_entry = {told: each["red"] / each["of"] for told in ENTRY if told in seen for each in seen[told][1:2]}
    assert {told: share for told, share in one_entry.items() if share < LEAST.get(name, 0)} == {}
    if name == PLAIN:
        assert set(one_entry.values()) == {0.0}


def keep(name: str, sound: Bench, seen: Seen) -> None:
    """Write or replace one model's table in the data, and the page anew."""
    table = read_data()
    table[name] = {"target": sound.subject.target, "circumstances": circumstances(sound), "faults": seen}
    DATA.write_text(as_text(table), "utf-8")
    PAGE.write_text(page(table), "utf-8")


def as_text(table: Mapping[str, Any]) -> str:
    """JSON with a line for each kind of fault, so that a change can be read."""
    models = []
    for name, told in table.items():
        faults = ",\n".join(f"  {_json(fault)}: {_json(rows)}" for fault, rows in told["faults"].items())
        said = ", ".join(f"{_json(key)}: {_json(value)}" for key, value in told.items() if key != "faults")
        models.append(f' {_json(name)}: {{{said}, "faults": {{\n{faults}}}}}')
    return "{\n" + ",\n".join(models) + "}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_data() -> dict[str, Any]:
    """What was measured so far."""
    return dict(json.loads(DATA.read_text("utf-8"))) if DATA.exists() else {}


def circumstances(sound: Bench) -> str:
    """On what the table was measured, in a paragraph."""
    floor, subject, versions = sound.reference.calibration.floor, sound.subject, sound.engine.description.versions
    return CIRCUMSTANCES.format(
        answers=subject.answers,
        prompt=PROMPT,
        tokens=subject.tokens[-1],
        floor=floor,
        versions=", ".join(f"{package} {version}" for package, version in sorted(versions.items())),
        machine=f"{processor()}, {cores()} cores",
    )


def page(table: Mapping[str, Any]) -> str:
    """The whole page, of what was measured so far."""
    return "\n".join([INTRODUCTION, *(section(name, table[name]) for name in TABLES if name in table)])


def section(name: str, measured: Mapping[str, Any]) -> str:
    """One model in one engine."""
    engine, _ = name.split()
    counts = sorted({row["tokens"] for rows in measured["faults"].values() for row in rows})
    heads = "".join(f" {count} tokens |" for count in counts)
    found = measured["faults"]
    rows = "\n".join(f"| {fault} |{cells(found[fault], counts)}" for fault in KINDS if fault in found)
    title = f"## {measured['target']} in {ENGINES[engine]}\n\n{measured['circumstances']}\n"
    return f"{title}\n| fault | plantings |{heads} red as |\n|---|---|{'---|' * len(counts)}---|\n{rows}\n"


def cells(rows: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> str:
    """How many, the shares with their intervals, and the names."""
    by_tokens = {row["tokens"]: row for row in rows}
    shares = "".join(f" {share(by_tokens.get(count))} |" for count in counts)
    names = sorted({name for row in rows for name in row["names"]})
    return f" {rows[0]['of']} |{shares} {', '.join(names)} |"


def share(row: Mapping[str, Any] | None) -> str:
    """A share with its interval; a dash where nothing was measured."""
    return "–" if row is None else f"{row['red'] / row['of']:.2f} [{row['interval'][0]:.2f}, {row['interval'][1]:.2f}]"


ENGINES = {"transformers": "Transformers", "vllm": "vLLM"}
CIRCUMSTANCES = """{answers} answers of {tokens} tokens at once after prompts of {prompt}, {floor.dtype}; {versions};
{machine}. Calibration: {floor.tokens} tokens, {floor.near_ties} of them not the argmax, largest gap
{floor.largest:.4g} ULPs, and at most {floor.bound} are a tie; {floor.disagreements} of {floor.compared} prompts
differ at batch 1."""
INTRODUCTION = f"""# What a verdict sees of a wrong KV cache

A fault is planted into one answer, in a layer, a head and a step that a seeded generator draws, while its first
{EARLY} tokens are decoded; where it says one step of {RARE}, in as many steps of the whole answer. Then the first 16
and 64 tokens of that answer (in Transformers, but with `readers=2`, 256 too; of a rollback 64 at most, of SmolLM2's 16)
are judged as a gate judges: against the sound engine's own output, with the calibration's noise floor and
near-ties, and with the sound target's rating of every token where they differ. The share of plantings that are red
stands beside its exact 95 % interval (Clopper and Pearson, Biometrika 26, 1934), and the names of the verdicts after
it. An entry is that of all layers where none is named. Two entries that are swapped are red where either answer is.
Written by

    tox -e evidence -- -k detection

or a table at a time, `-k "detection and transformers and memory"`; with `DETECTION=resume` a run that was broken off
goes on. The same as data: `verdict/detection.json` of the package. From it every green
gate on such a model states what it would have seen, in its record (`detection`) and in the report: lower bounds of
the table for Transformers, by the tokens of its shortest answer; none where a prompt is no longer than `memory=N`.

What to read from it:

- Without memory nothing is seen, in no place: the next token of a plain pair depends on the last one only.
- With memory a fault that lasts (positions off by one) is always seen. An entry goes unseen where a foreign token
  has the same codes by chance: one reading misses it once in four, n readings of different codes once in 4^n. `tiny`
  reads each KV head of each layer four times, so that within 64 tokens nearly every entry at fault is seen, in one head
  of one layer too.
- With `readers=2` each KV head of `tiny` is read once. Pairs that read theirs less than four times (`small`, 8B) state
  that table; pairs with less than four codes or two bits state none.
- 16 tokens see less: most readings of an entry are up to {OLD} tokens away. After that nothing reads it.
- An entry that is overwritten when it is some tokens old is read by those heads only whose distance is greater: every
  layer has one that reads `memory=N` back, and few read further than N − 2. So the very oldest go unseen now and then.
- A rejected entry that stays shares its context with the right one: only heads that keep the token's own code can
  tell.
- No pair with memory sees rounding, neither a quarter off one entry nor keys in fp8: a reading restores the sign.
- SmolLM2 on English text is the other half: within 64 tokens it sees keys in fp8 and an entry a quarter off in most
  places, a foreign block in all, one step of bfloat16 in none, and one entry of one layer at fault in a few places.
  Gate on both.
"""
