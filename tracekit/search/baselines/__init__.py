"""Baselines: rankings of single components, greedy, random and exhaustive search."""
