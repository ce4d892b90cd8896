"""The report over saved runs: gathered once, and written as a page, as text, or as numbers, which say the same."""

from pytest_specdec.report.write import FORMATS, format_of, write_report

__all__ = ["FORMATS", "format_of", "write_report"]
