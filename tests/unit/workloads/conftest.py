"""What tests of workloads share: a folder of their own to work in, a tokenizer, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.errors import ConfigurationError

RANDOM = 'source = { format = "random", length = 4 }\ncount = 3\nmax_tokens = 8\n'


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def letters(texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer: one id a character."""
    return [[ord(letter) for letter in text] for text in texts]


def refusal_of(ask: Callable[..., object], *arguments: Any) -> str:
    """The whole message with which this is refused, without the folder."""
    with pytest.raises(ConfigurationError) as caught:
        ask(*arguments)
    return str(caught.value).replace(f"{Path.cwd()}/", "")
