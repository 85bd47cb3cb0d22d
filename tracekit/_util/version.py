"""The version of this source, also in a checkout; a build takes it from here."""

__version__ = "0.1.0"
