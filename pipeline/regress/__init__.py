"""Regression of copies on measured peaks: rows of bytes per copy, solvers, what data separate."""
