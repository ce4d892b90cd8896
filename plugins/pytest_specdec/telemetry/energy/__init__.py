"""Energy of the timed rounds, from counters that lie outside the engine.

A meter is chosen for an engine (`meter_for`), started while the engine is loaded and idle, told where each round begins
and ends, and stopped with the number of delivered tokens. It gives the record's energy: joules, joules a token, watts,
how they were obtained, on which devices, and what speaks against them. What cannot be measured is None with a reason.
"""

from pytest_specdec.telemetry.energy.choice import Instruments, local_meter, meter_for
from pytest_specdec.telemetry.energy.meter import Meter, NoMeter, Subject

__all__ = ["Instruments", "Meter", "NoMeter", "Subject", "local_meter", "meter_for"]
