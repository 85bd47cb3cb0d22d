"""Mutation testing: how many small faults in the package do the tests notice?

`python -m tests.mutation` changes one operator, number, condition or call at a time, in a copy of
the module in memory, and runs the tests that pass through the changed line. A fault that no test
notices is a survivor; it is listed.
"""
