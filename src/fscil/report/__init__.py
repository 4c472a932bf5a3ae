"""Results -> terminal tables, Markdown, and one self-contained HTML page with figures."""

from fscil.report.page import write_report
from fscil.report.tables import MEASURES, OPEN_SET_MEASURES, Table, paper_results, tables, to_markdown, to_terminal

__all__ = [
    "MEASURES",
    "OPEN_SET_MEASURES",
    "Table",
    "paper_results",
    "tables",
    "to_markdown",
    "to_terminal",
    "write_report",
]
