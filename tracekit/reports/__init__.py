"""Reports: all results on one page."""

from tracekit.reports.report import report

__all__ = ["report"]
