"""Lines of a UTF-8 file, one by one, so that a long trace need not be read to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_specdec.errors import ConfigurationError

POINTER = b"version https://git-lfs.github.com/spec/v1"


def readable(path: Path) -> None:
    """Raise ConfigurationError unless the file can be opened and holds data."""
    try:
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except FileNotFoundError:
        raise ConfigurationError(
            f"no such file {path}: the path is relative to the folder of the scenario file"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): name a readable file") from None
    if start == POINTER:
        raise ConfigurationError(f"{path} is an LFS pointer, not data: git lfs pull")


def lines(path: Path) -> Iterator[str]:
    """Each line with its end; a byte order mark is left out. Raises ConfigurationError where it is not UTF-8."""
    readable(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ConfigurationError(
                    f"{path}:{number} is not UTF-8 at byte {error.start} of the line: save the file as UTF-8"
                ) from None
