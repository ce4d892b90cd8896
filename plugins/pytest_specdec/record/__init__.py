"""The record of a gate, which is what a run makes: types, their JSON, and the converter of saved runs of schema 1."""

from pytest_specdec.record.figure import NOTHING, Figure, Spread, missing
from pytest_specdec.record.record import (
    GREEN,
    NOT_JUDGED,
    PASSING,
    RED,
    REGRESSED,
    SCHEMA,
    UNJUDGED,
    Parts,
    Place,
    Record,
    from_json,
    to_json,
)

__all__ = [
    "GREEN",
    "NOTHING",
    "NOT_JUDGED",
    "PASSING",
    "RED",
    "REGRESSED",
    "SCHEMA",
    "UNJUDGED",
    "Figure",
    "Parts",
    "Place",
    "Record",
    "Spread",
    "from_json",
    "missing",
    "to_json",
]
