"""Rows of data files: read one by one, each with its place, and chosen."""
