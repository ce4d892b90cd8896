"""The command line: make models ahead of a run, see what can be made, find where it lies.

`python -m pytest_specdec.models make constructed:tiny smollm2?layers=4` prints one JSON line for each model,
`python -m pytest_specdec.models list` the presets and parameters, and
`python -m pytest_specdec.models where smollm2` the path, made or not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from pytest_specdec.errors import ModelError
from pytest_specdec.models.cache import build, where
from pytest_specdec.models.memory import Shape
from pytest_specdec.models.reference import PARAMETERS, PRESETS, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it is done, 2 with one line on standard error when a model cannot be had."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pytest_specdec.models", description="Models with a known answer.")
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("make", help="make models that are missing; one JSON line for each")
    make.set_defaults(run=_make)
    commands.add_parser("list", help="show presets and parameters").set_defaults(run=_list)
    find = commands.add_parser("where", help="print the path of each model, made or not")
    find.set_defaults(run=_where)
    for command in (make, find):
        command.add_argument("references", nargs="+", metavar="REF")
        command.add_argument("--cache", metavar="DIR", help="root of the models (default: SPECDEC_CACHE or ~/.cache)")
    return parser


def _make(options: argparse.Namespace) -> None:
    for reference in options.references:
        started, recipe = time.perf_counter(), parse(reference)
        path, cached = (reference, True) if recipe is None else build(recipe, options.cache)
        seconds = round(time.perf_counter() - started, 3)
        made = {"reference": reference, "path": str(path), "seconds": seconds, "cached": cached}
        print(json.dumps(made), flush=True)


def _where(options: argparse.Namespace) -> None:
    for reference in options.references:
        print(where(reference, options.cache))


def _list(_: argparse.Namespace) -> None:
    for name, preset in PRESETS.items():
        print(f"constructed:{name}  vocab {preset.vocab}, max_position_embeddings {preset.max_position_embeddings}")
        print(f"    target  {_describe(preset.target)}\n    draft   {_describe(preset.draft)}")
        if preset.memory_draft is not None:
            print(f"    draft with memory  {_describe(preset.memory_draft)}")
    print("smollm2  SmolLM2-135M-Instruct, 30 layers")
    for part, parameters in PARAMETERS.items():
        print(f"parameters of {part}:")
        for name in sorted(parameters):
            print(f"    {name}: {parameters[name].expects}")


def _describe(shape: Shape) -> str:
    heads = f"{shape.heads} heads ({shape.kv_heads} for keys and values) of {shape.head_dim}"
    return f"{shape.architecture}: {shape.layers} layers of {shape.hidden}, {heads}, MLP {shape.intermediate}"


if __name__ == "__main__":
    sys.exit(main())
