"""Engines, each in a process of its own, behind one small protocol."""
