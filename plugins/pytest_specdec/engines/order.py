"""The order of tests that loads each engine once: by target, target-only first, then engine by engine."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.engines.spec import EngineSpec


def engine_order(engines: Sequence[Sequence[EngineSpec]]) -> list[int]:
    """Indices of tests in the order to run them, given each test's engines; stable within an engine."""
    families: dict[str, int] = {}
    keys: dict[str, int] = {}
    ranks = []
    for index, specs in enumerate(engines):
        last = max(specs, key=lambda spec: spec.speculates)
        family = families.setdefault(last.target_only().key, index)
        ranks.append((family, last.speculates, keys.setdefault(last.key, index), index))
    return [rank[-1] for rank in sorted(ranks)]
