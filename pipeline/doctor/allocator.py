"""PyTorch's allocator, as its settings in the environment have it."""

import os

from pipeline.doctor.finding import Finding, absent, broken, here
from pipeline.doctor.libraries import ON_DEVICE
from planner.fragments import EXPANDABLE, FIXED

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The name before torch 2.9, which still wins where both are set, be it to nothing; and today's."""

WANTED, OTHER_POOL = "expandable_segments:True", "backend:cudaMallocAsync"


def allocator() -> Finding:
    """Say what fragments cost with the allocator's settings."""
    name = next((name for name in VARIABLES if name in os.environ), VARIABLES[-1])
    given = "".join(os.environ.get(name, "").split()).split(",")
    if OTHER_POOL in given:
        found = f"{OTHER_POOL}: CUDA's own pool, which no meter can follow"
        return broken("allocator", found, ON_DEVICE, f"export {name}={WANTED}")
    if WANTED in given:
        found = f"expandable segments: {EXPANDABLE.permille / 10:g} % of a call are set aside"
        return here("allocator", found, ON_DEVICE)
    cost = f"fixed segments: {FIXED.permille / 10:g} % of a call are set aside for fragments"
    return absent("allocator", cost, ON_DEVICE, f"export {name}={WANTED}")
