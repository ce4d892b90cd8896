"""From a reference to a folder, without torch in this process: a model that is not there yet is made by another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.models.cache import is_complete, place
from pytest_specdec.models.errors import ModelError
from pytest_specdec.models.reference import parse

if TYPE_CHECKING:
    from pytest_specdec.progress import Doing

PACKAGES = str(Path(__file__).resolve().parents[2])
IMPORTABLE = f"import runpy, sys; sys.path.append({PACKAGES!r}); "
MAKER = IMPORTABLE + "runpy.run_module('pytest_specdec.models', run_name='__main__')"
LAST_LINES = 12


def resolve(
    reference: str, cache: str | Path | None = None, python: str = sys.executable, doing: Doing = nullcontext
) -> str:
    """The path to give an engine as its model: a checkpoint's folder, or the reference itself where it is not ours.

    `cache`: the root of the models, by default SPECDEC_CACHE or the user's cache folder. `python`: the interpreter that
    makes a missing model; it needs torch, and its own packages come first. `doing` hears when one is made. Raises
    ModelError for a bad reference, and with the maker's last lines where making fails.
    """
    recipe = parse(reference)
    if recipe is None:
        return reference
    folder = place(recipe, cache)
    if not is_complete(folder):
        with doing(f"making the model {reference}"):
            _make(reference, folder.parent, python)
    return str(folder)


def _make(reference: str, root: Path, python: str) -> None:
    command = [python, "-c", MAKER, "make", reference, "--cache", str(root)]
    quiet = {**os.environ, "TQDM_DISABLE": "1"}
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=quiet)
    except OSError as error:
        raise ModelError(f"model {reference!r} cannot be made: no interpreter at {python} ({error})") from error
    if made.returncode:
        lines = (made.stderr.strip() or made.stdout.strip() or "no output").splitlines()[-LAST_LINES:]
        raise ModelError(f"model {reference!r} could not be made (exit {made.returncode}):\n" + "\n".join(lines))
    if not is_complete(Path(json.loads(made.stdout.splitlines()[-1])["path"])):
        raise ModelError(f"model {reference!r} was made, yet {root} does not hold it: does {python} see the same disk?")
