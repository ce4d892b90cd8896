"""A fake engine and a fake clock: speculative decoding by arithmetic, in no time, with every figure known beforehand.

It ships with the package so that a plugin built on this one, or this one's own tests, can see a gate from end to end
without a model. Time is what `clock` reads, and only the engine advances it. `--specdec-engine fake` brings this clock,
a target and a scenario (`numbers.toml`); where other engines run beside it, time is the computer's unless one gives
`--benchmark-timer=pytest_specdec.engines.fake.clock`.

Where things are: `models` what the target prefers next, and how that gives a token; `decoding` the time, and the steps
of speculation, one method a step; `engine` the engine, and decoders with one step broken. Options
(EngineSpec.options): those of `engine.DEFAULTS`, and `fault`, for a fault in both arms. Speculative options: `alpha`
(share of tokens drafted right, 0.8), and `fault`, for a fault of speculation: a name of `FAULTS`, in which
`@fault(name)` enters a decoder of one's own.
"""

from pytest_specdec.engines.fake.decoding import TIME, Decoder, FakeTime, Progress, clock
from pytest_specdec.engines.fake.engine import DEFAULTS, FAULTS, VERSIONS, FakeEngine, fault

__all__ = ["DEFAULTS", "FAULTS", "TIME", "VERSIONS", "Decoder", "FakeEngine", "FakeTime", "Progress", "clock", "fault"]
