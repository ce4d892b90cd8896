"""The faults by name, as the option `fault` has it."""

from __future__ import annotations

from collections.abc import Callable

from pytest_specdec.engines.fake.decoding import Decoder

FAULTS: dict[str, type[Decoder]] = {}


def fault(name: str) -> Callable[[type[Decoder]], type[Decoder]]:
    """Enter a decoder under this name."""

    def enter(decoder: type[Decoder]) -> type[Decoder]:
        FAULTS[name] = decoder
        return decoder

    return enter
