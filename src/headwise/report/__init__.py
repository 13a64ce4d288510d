"""One self-contained HTML page over one or more runs, from their tables alone."""

from headwise.report.page import findings, write_report

__all__ = ["findings", "write_report"]
