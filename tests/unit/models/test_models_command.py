"""The command line: one JSON line for each model, and one line for a mistake."""

import json

import pytest

from pytest_specdec.models import cache
from pytest_specdec.models.__main__ import main


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(cache, "write_model", lambda recipe, folder: (folder / "weights").write_text(recipe.name))


def test_make_prints_one_json_line_for_each_model(tmp_path, capsys, quick):
    arguments = ["make", "constructed:tiny", "constructed:tiny:draft", "org/model", "--cache", str(tmp_path)]
    assert main(arguments) == 0
    assert main(arguments[:2] + arguments[-2:]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["cached"] for line in lines] == [False, False, True, True]
    assert [line["reference"] for line in lines] == [*arguments[1:4], "constructed:tiny"]
    assert lines[2]["path"] == "org/model"
    assert (tmp_path / lines[0]["path"] / "weights").read_text() == "tiny-target"


def test_a_mistake_is_one_line_and_exit_code_two(tmp_path, capsys):
    assert main(["make", "constructed:tinny", "--cache", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: model reference 'constructed:tinny': unknown preset 'tinny'")
    assert err.count("\n") == 1


def test_where_prints_the_path_of_a_model_that_is_not_made(tmp_path, capsys):
    assert main(["where", "smollm2", "org/model", "--cache", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path}/smollm2-")
    assert second == "org/model"
    assert list(tmp_path.iterdir()) == []


def test_list_shows_presets_and_parameters(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "constructed:tiny-qwen3",
        "constructed:llama-8b",
        "vocab 151936",
        "margin: a number in [0.0001, 1)",
        "draft with memory  llama: 1 layers of 192",
        "memory: a whole number in 6..100000",
    ):
        assert expected in shown


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "usage" in capsys.readouterr().err
