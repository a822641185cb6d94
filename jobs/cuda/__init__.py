"""Ranks on CUDA devices: which devices, the rank, its live loop."""
