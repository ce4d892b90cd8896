"""The run of one gate: measure, judge, describe, conclude."""
