"""Measurements, all taken from the generations that were judged."""
