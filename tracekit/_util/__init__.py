"""Internals that many folders use: options, files, markup, progress, processes."""
