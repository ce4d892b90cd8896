"""Settings: the order of sources, and what a wrong value says."""

from __future__ import annotations

import pytest

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.settings import OPTIONS, Settings


def test_command_line_over_environment_over_ini_over_default() -> None:
    sources = [{"gamma": "2"}, {"SPECDEC_GAMMA": "4"}, {"gamma": "6"}]
    assert Settings.resolve(sources[0], sources[1], sources[2]).gamma == (2,)
    assert Settings.resolve({}, sources[1], sources[2]).gamma == (4,)
    assert Settings.resolve({}, {}, sources[2]).gamma == (6,)
    assert Settings.resolve({}, {}, {}).gamma == ()


def test_every_option_is_a_field_and_every_field_an_option() -> None:
    assert set(Settings.__dataclass_fields__) - {"origins"} == {option.name for option in OPTIONS}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (({"gamma": "three"}, {}, {}), r"--specdec-gamma: cannot read 'three' as N\[,N\]"),
        (({"gamma": "0"}, {}, {}), "must be at least 1"),
        (({}, {"SPECDEC_ROUNDS": "many"}, {}), "SPECDEC_ROUNDS: cannot read 'many'"),
        (({}, {}, {"load_timeout": "soon"}), "specdec_load_timeout in the ini file: cannot read 'soon' as SECONDS"),
        (({"timeout": "-1"}, {}, {}), "must be more than 0 seconds"),
        (({"timeout": "inf"}, {}, {}), "must be more than 0 seconds, and finite"),
        (({"gamma": ","}, {}, {}), "name one or more"),
        (({"engine_options": "[1]"}, {}, {}), "must be a JSON object"),
        (({"require": "gpuu"}, {}, {}), "'gpuu' is none of gpu, cpu, multi_gpu, vllm, transformers"),
        (({"dtype": "fp16"}, {}, {}), "'fp16' is none of bfloat16, float16, float32; did you mean 'float16'"),
        (
            ({}, {"SPECDEC_GAMA": "3"}, {}),
            "unknown option SPECDEC_GAMA in the environment; did you mean 'SPECDEC_GAMMA'",
        ),
    ],
)
def test_a_wrong_value_names_its_place(sources: tuple[dict[str, str], ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings.resolve(*sources)


@pytest.mark.parametrize(
    ("sources", "warning"),
    [
        (({"control": "2"}, {}, {}), "--specdec-control: write --specdec-calibration"),
        (({}, {"SPECDEC_CONTROL": "2"}, {}), "SPECDEC_CONTROL: write SPECDEC_CALIBRATION"),
        (({}, {}, {"control": "2"}), "specdec_control in the ini file: write specdec_calibration in the ini file"),
    ],
    ids=["command line", "environment", "ini"],
)
def test_an_old_name_is_read_and_warned_of(sources: tuple[dict[str, str], ...], warning: str) -> None:
    settings = Settings.resolve(*sources)
    assert settings.calibration == 2
    assert settings.warnings() == [f"{warning}; the next version does not know the old name"]


def test_the_new_name_over_the_old_one_without_a_warning() -> None:
    settings = Settings.resolve({"control": "2", "calibration": "3"}, {"SPECDEC_CONTROL": "4"}, {"control": "5"})
    assert (settings.calibration, settings.warnings()) == (3, [])


def test_an_old_name_on_the_command_line_over_the_new_one_in_the_environment() -> None:
    assert Settings.resolve({"control": "2"}, {"SPECDEC_CALIBRATION": "3"}, {}).calibration == 2
