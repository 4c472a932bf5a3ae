"""Results -> tables for the terminal, Markdown, and one self-contained HTML page with figures."""

from fscil.report.blocks import Table
from fscil.report.page import write_report
from fscil.report.run_tables import MEASURES, OPEN_SET_MEASURES, run_tables

__all__ = ["MEASURES", "OPEN_SET_MEASURES", "Table", "run_tables", "write_report"]
