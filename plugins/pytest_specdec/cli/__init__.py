"""The command line: saved runs, and what this machine can run."""
