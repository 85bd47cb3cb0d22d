"""Local search: the best set of every size, from measured neighbours of measured sets."""
