"""Workloads: what is asked of an engine, as token ids."""
