"""Figures of the generations that were judged: pure functions of rounds, which return parts of the record."""
