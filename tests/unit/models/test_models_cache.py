"""A model in the cache is complete or absent, whoever writes, however often, and however it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.models import ModelError, parse, resolve, where
from pytest_specdec.models.cache import IMPORTABLE, build, default_root, is_complete, place

TINY = parse("constructed:tiny")
SLOW_WRITER = (
    IMPORTABLE
    + """
import time
from pytest_specdec.models import parse
from pytest_specdec.models.cache import build
def write(recipe, folder):
    (folder / "weights").write_text("half")
    print("half", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "weights").write_text("whole")
print(build(parse("constructed:tiny"), sys.argv[1], write)[1], flush=True)
"""
)


def writer(root, seconds):
    command = [sys.executable, "-c", SLOW_WRITER, str(root), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def quick(recipe, folder):
    (folder / "weights").write_text("whole")


def visible(root):
    return sorted(path.name for path in Path(root).iterdir() if not path.name.startswith("."))


def test_two_processes_at_once_make_one_model_once(tmp_path):
    writers = [writer(tmp_path, 0.5), writer(tmp_path, 0.5)]
    said = sorted(process.communicate(timeout=600)[0].split() for process in writers)
    assert said == [["True"], ["half", "False"]]
    assert (place(TINY, tmp_path) / "weights").read_text() == "whole"
    assert visible(tmp_path) == [place(TINY).name]


def test_a_killed_writer_leaves_no_model_and_the_next_one_sweeps(tmp_path):
    process = writer(tmp_path, 3600)
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert visible(tmp_path) == []
    assert len(list(tmp_path.glob(".*.growing-*"))) == 1
    assert build(TINY, tmp_path, quick) == (place(TINY, tmp_path), False)
    assert list(tmp_path.glob(".*.growing-*")) == []


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def fail(recipe, folder):
        quick(recipe, folder)
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        build(TINY, tmp_path, fail)
    assert visible(tmp_path) == []
    assert list(tmp_path.glob(".*.growing-*")) == []


def test_the_second_time_nothing_is_written(tmp_path):
    build(TINY, tmp_path, quick)
    assert build(TINY, tmp_path, pytest.fail) == (place(TINY, tmp_path), True)


def test_the_folder_carries_its_recipe(tmp_path):
    folder, _ = build(TINY, tmp_path, quick)
    recipe = json.loads((folder / "recipe.json").read_text())
    assert (recipe["kind"], recipe["format"], recipe["vocab"]) == ("target", 1, 1024)


def test_a_shared_cache_can_be_read_by_others(tmp_path):
    def private(recipe, folder):
        quick(recipe, folder)
        (folder / "weights").chmod(0o600)

    folder, _ = build(TINY, tmp_path, private)
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "weights")] == ["0o755", "0o644"]


def test_a_foreign_folder_in_the_way_is_named(tmp_path):
    place(TINY, tmp_path).mkdir(parents=True)
    (place(TINY, tmp_path) / "mine").write_text("")
    with pytest.raises(ModelError, match="is in the way and is no complete model; remove it"):
        build(TINY, tmp_path, quick)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        build(TINY, tmp_path / "file", quick)


def test_the_root_is_the_environments_choice(monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", "/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_root() == Path("/models")
    monkeypatch.delenv("SPECDEC_CACHE")
    assert default_root() == Path("/caches/pytest-specdec/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache/pytest-specdec/models"


def test_where_tells_the_place_without_making_it(tmp_path):
    assert where("constructed:tiny", tmp_path) == str(place(TINY, tmp_path))
    assert where("org/model", tmp_path) == "org/model"
    assert not is_complete(place(TINY, tmp_path))


def test_resolving_what_is_there_takes_no_other_process(tmp_path, monkeypatch):
    build(TINY, tmp_path, quick)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert resolve("constructed:tiny", tmp_path) == str(place(TINY, tmp_path))


def test_resolving_gives_the_makers_last_lines(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nfor n in $(seq 40); do echo line $n >&2; done\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(ModelError, match=r"(?s)constructed:tiny' could not be made \(exit 3\):\nline 29\n.*line 40$"):
        resolve("constructed:tiny", tmp_path)


def test_an_interpreter_without_torch_is_told_what_to_install(tmp_path, monkeypatch):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    (tmp_path / "python").write_text(f'#!/bin/sh\nPYTHONPATH={hidden}:$PYTHONPATH exec {sys.executable} "$@"\n')
    os.chmod(tmp_path / "python", 0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ModelError, match=r"needs torch, which is not installed: pip install 'pytest-specdec\[transf"):
        resolve("constructed:tiny", tmp_path / "models")
    assert visible(tmp_path / "models") == []
