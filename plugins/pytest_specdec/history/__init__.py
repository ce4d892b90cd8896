"""Saved runs, which of them is a baseline, and how a change is judged."""
