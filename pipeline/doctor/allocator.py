"""PyTorch's allocator, as its settings in the environment have it."""

import os

from pipeline.doctor.finding import Finding, absent, here
from pipeline.doctor.libraries import ON_DEVICE
from planner.fragments import EXPANDABLE, FIXED

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Today's name, and the one before torch 2.9, which is still read."""

WANTED = "expandable_segments:True"


def allocator() -> Finding:
    """Say what fragments cost with the allocator's settings."""
    given = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
    if WANTED.lower() in given.replace(" ", "").lower():
        found = f"expandable segments: {EXPANDABLE.permille / 10:g} % of a call are set aside"
        return here("allocator", found, ON_DEVICE)
    cost = f"fixed segments: {FIXED.permille / 10:g} % of a call are set aside for fragments"
    return absent("allocator", cost, ON_DEVICE, f"export PYTORCH_ALLOC_CONF={WANTED}")
