"""The report over saved runs: one file that needs nothing else, as a page, as text, or as plain numbers.

    write_report(runs, Path("report.html"), "html")

Figures and verdicts are gathered once (`content`) and written in one of four ways, so that all formats say the same.
"""

from pytest_specdec.report.write import FORMATS, format_of, write_report

__all__ = ["FORMATS", "format_of", "write_report"]
