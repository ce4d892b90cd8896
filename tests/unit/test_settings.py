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
