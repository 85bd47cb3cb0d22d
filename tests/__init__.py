"""Tests of tracekit."""

from tests.annotations import check

__all__ = ["check"]
