"""Which GPUs are visible: CUDA's own rules, on made-up cards."""

from __future__ import annotations

import pytest

from pytest_specdec import hardware as machine
from pytest_specdec.engines.choice import choose_engines
from pytest_specdec.hardware import Gpu, emulates_bfloat16, missing_engine, visible_gpus
from pytest_specdec.run.describe import hardware_part
from pytest_specdec.settings import Settings

A, B, C = (Gpu(f"GPU-{letter * 8}", "card", index) for index, letter in enumerate("abc"))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("2,0", (C, A)),
        ("GPU-bb", (B,)),
        ("GPU-", ()),
        ("0,9,1", (A,)),
        ("0,0,1", (A,)),
        ("-1", ()),
        ("²", ()),
        ("MIG-GPU-aaaaaaaa/1/0", ()),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_see(listed: str | None, expected: tuple[Gpu, ...]) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_gpus((A, B, C), environment) == expected


def test_a_package_is_looked_for_in_the_interpreter_that_would_run_it() -> None:
    assert missing_engine("transformers", "/no/such/python") == (
        "the interpreter /no/such/python cannot be started (No such file or directory); correct --specdec-python"
    )
    assert missing_engine("fake", None) is None


def test_hardware_names_the_processor_and_its_cores() -> None:
    found = hardware_part()
    assert found.processor
    assert found.cores >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f amx_bf16\n", False),
        ("flags\t\t: fpu avx2 avx512_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("flags\t\t: fpu avx2 avx512f\n", True),
        ("Features\t: fp asimd\n", True),
        ("model name\t: a processor that tells no flags\n", False),
    ],
)
def test_a_processor_has_bfloat16_if_its_flags_say_so(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: bool
) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: cpuinfo)
    assert emulates_bfloat16() == expected


@pytest.mark.parametrize(
    ("backend", "mark", "dtypes"),
    [
        ("vllm", {}, ("float32", "bfloat16")),
        ("vllm", {"dtype": "float16"}, ("float16", "float16")),
        ("transformers", {"gateway": "ssh=there"}, ("bfloat16", "bfloat16")),
        ("fake", {}, ("bfloat16", "bfloat16")),
    ],
)
def test_the_default_dtype_is_what_the_machine_computes_in(
    monkeypatch: pytest.MonkeyPatch, backend: str, mark: dict[str, str], dtypes: tuple[str, str]
) -> None:
    """Without bfloat16 arithmetic float32, unless there is a GPU; of another host nobody knows."""
    monkeypatch.setattr(machine, "emulates_bfloat16", lambda: True)
    found = []
    for driver in (False, True):
        monkeypatch.setattr(machine, "has_nvidia_driver", lambda driver=driver: driver)
        (engine,) = choose_engines(backend, False, [{"target": "m", **mark}], Settings.resolve({}, {}, {}))
        found.append(engine.dtype)
    assert tuple(found) == dtypes
