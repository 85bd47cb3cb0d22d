"""Errors: what all of them can do."""

from __future__ import annotations

import pickle


def test_errors_pass_between_processes():
    from tracekit import errors

    error = errors.UnknownOptionError("lamda", ["lambda1"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    plain = errors.ConfigError("No. Yes.")
    assert str(pickle.loads(pickle.dumps(plain))) == "No. Yes."
