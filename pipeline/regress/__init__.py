"""Regression of copies on measured peaks: rows of bytes per copy, solvers, what the data separate."""
