"""Checks: proofs that hooks act on a model, before its numbers are trusted."""

from tracekit.checks.hooks import check_engine, check_sites, check_unchanged

__all__ = ["check_engine", "check_sites", "check_unchanged"]
