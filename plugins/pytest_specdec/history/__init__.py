"""Saved runs, which of them is a baseline run, and how a change is judged."""
