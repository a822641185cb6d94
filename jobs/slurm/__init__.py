"""Cells on a Slurm cluster: planned into job arrays, submitted, followed, and their ends judged."""
