"""Loads the plugin for this repository, and pytest's own plugin for testing plugins; nothing else."""

pytest_plugins = ["pytest_specdec.plugin", "pytester"]
