"""Data flows one way, and so do imports: no room of the house imports one that stands above it."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pytest_specdec

ROOT = Path(pytest_specdec.__file__).parent
FLOORS = (
    ("errors", "hookspecs"),
    ("record",),
    ("hardware", "generation", "thresholds"),
    ("settings",),
    ("exported_names",),
    ("workloads", "models"),
    ("engines", "gpu_locks"),
    ("verdict",),
    ("metrics",),
    ("telemetry",),
    ("progress", "history"),
    ("report",),
    ("run",),
    ("fixtures", "interruption", "first_project", "cli"),
    ("plugin",),
    ("__main__",),
)
KNOW_PYTEST = {"plugin", "fixtures", "hookspecs", "interruption"}
SHIPPED = ("engines/vllm.py", "engines/transformers.py", "engines/worker.py", "engines/fork_server.py")


def floor(module: str) -> int:
    """The floor of a dotted module name, by its first part inside the package."""
    room = module.removeprefix("pytest_specdec.").split(".")[0]
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


def imports(tree: ast.AST) -> list[str]:
    """Every module that the tree imports at run time; what is imported for type checking alone is left out."""
    found: list[str] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "pytest_specdec":
            found += [f"pytest_specdec.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        found += imports(node)
    return found


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(imports(ast.parse(path.read_text())))


def own_modules() -> list[Path]:
    example = ROOT / "examples"  # which the wheel carries for the demo
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py" and example not in path.parents]


def name(path: Path) -> str:
    return ".".join(("pytest_specdec", *path.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize("path", own_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_runs_back_up(path: Path) -> None:
    """A module imports only from its own floor or below."""
    ours = [module for module in imports_of(path) if module.startswith("pytest_specdec.")]
    assert [module for module in ours if floor(module) > floor(name(path))] == []


@pytest.mark.parametrize("path", own_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_wiring_knows_pytest(path: Path) -> None:
    """Nothing below plugin.py imports pytest."""
    knows = "pytest" in imports_of(path)
    assert not knows or path.stem in KNOW_PYTEST


@pytest.mark.parametrize("shipped", SHIPPED)
def test_what_runs_in_a_worker_stands_alone(shipped: str) -> None:
    """The worker's interpreter need not have this package."""
    modules = imports_of(ROOT / shipped)
    assert [module for module in modules if module.startswith("pytest_specdec")] == []


def test_an_import_that_runs_up_is_found() -> None:
    """The check itself sees imports inside functions, and passes over those for type checking."""
    source = "if TYPE_CHECKING:\n    import pytest\ndef f():\n    from pytest_specdec.run.gate import Gate\n"
    assert imports(ast.parse(source)) == ["pytest_specdec.run.gate"]
    assert floor("pytest_specdec.run.gate") > floor("pytest_specdec.engines.pool")


def test_all_modules_stand_in_one_line() -> None:
    """Within a room and its sub-rooms too no module leads back to itself, imports inside functions included."""
    assert in_one_line({name(path): set(imports_of(path)) for path in own_modules()})


def test_two_modules_that_import_each_other_are_found() -> None:
    """The check itself, on a circle of two."""
    assert in_one_line({"a": {"b"}, "b": set()})
    assert not in_one_line({"a": {"b"}, "b": {"a"}})


def in_one_line(needs: dict[str, set[str]]) -> bool:
    """Whether the modules can be put in an order in which each comes after what it imports."""
    try:
        tuple(TopologicalSorter({module: known & set(needs) for module, known in needs.items()}).static_order())
    except CycleError:
        return False
    return True
