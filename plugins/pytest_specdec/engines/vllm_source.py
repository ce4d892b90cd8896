"""What the vLLM installed here takes, read from its source: importing it takes seconds, before anything is refused.

Each function says None where there is no vLLM, or where another version has it elsewhere: then nothing is refused here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path


@lru_cache
def names_of_vllm() -> frozenset[str] | None:
    """Every method's name."""
    literals = {
        ast.unparse(node.targets[0]): node.value.slice
        for node in _parsed("config/speculative.py").body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
    }
    known = literals.get("SpeculativeMethod")
    return None if known is None else frozenset(_flatten(known, literals))


@lru_cache
def options_of_vllm() -> frozenset[str] | None:
    """The names of an engine's options: fields of EngineArgs, and what the constructor of LLM takes beside them."""
    llm = _class("entrypoints/llm.py", "LLM")
    made = [each for each in llm.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"] if llm else []
    taken = {each.arg for function in made for each in (*function.args.args, *function.args.kwonlyargs)}
    fields = _fields("engine/arg_utils.py", "EngineArgs")
    return fields and fields | taken - {"self"}


@lru_cache
def speculative_options_of_vllm() -> frozenset[str] | None:
    """The names of what else is said of speculation."""
    return _fields("config/speculative.py", "SpeculativeConfig")


def _parsed(file: str) -> ast.Module:
    found = find_spec("vllm")
    path = Path(found.origin).parent / file if found is not None and found.origin is not None else None
    return ast.parse(path.read_text("utf-8") if path is not None and path.exists() else "")


def _class(file: str, name: str) -> ast.ClassDef | None:
    return next((each for each in _parsed(file).body if isinstance(each, ast.ClassDef) and each.name == name), None)


def _fields(file: str, name: str) -> frozenset[str] | None:
    found = _class(file, name)
    if found is None or found.bases:
        return None
    return frozenset(ast.unparse(each.target) for each in found.body if isinstance(each, ast.AnnAssign))


def _flatten(node: ast.expr, literals: Mapping[str, ast.expr]) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield from _flatten(literals[each.id], literals)
        elif isinstance(each, ast.Constant):
            yield str(each.value)
