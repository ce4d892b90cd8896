"""Which GPUs are visible: CUDA's own rules, on made-up cards."""

from __future__ import annotations

import pytest

from pytest_specdec.hardware import Gpu, hardware, missing_engine, visible_gpus

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
    found = hardware()
    assert found["processor"]
    assert found["cores"] >= 1
