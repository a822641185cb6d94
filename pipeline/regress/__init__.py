"""Regression of copies on measured peaks: rows of bytes per copy, solvers, what data separate."""

import os

# Read when numpy is first imported. Products here are of many rows and few columns: threads would
# wait for each other, on a machine that is busy for many times as long as one thread works.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
