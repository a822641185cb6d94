"""Everything that is looked for, at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pipeline.doctor.allocator import allocator
from pipeline.doctor.cluster import slurm
from pipeline.doctor.finding import EVERY_SWEEP, Finding
from pipeline.doctor.libraries import ON_DEVICE, extension, installed, python, torch_and_device
from pipeline.doctor.place import place
from pipeline.doctor.services import chromium, wandb

JOBS = "pip install -c constraints.txt -e '.[jobs]'"
DEEP_EP = "build DeepEP's hybrid-ep branch against this torch (github.com/deepseek-ai/DeepEP)"
TE = "pip install --no-build-isolation 'transformer-engine[pytorch]', against this torch"

NAMES = (
    *("python", "torch", "cuda", "nccl", "allocator"),
    *("megatron-core", "deep_ep", "transformer_engine"),
    *("slurm", "accounting", "scrontab", "wandb", "chromium"),
    *("results", "shared", "space", "memory"),
)
"""What is looked at, in the order of `examine`."""


def examine(out: Path) -> list[Finding]:
    """Look at everything; takes as long as its slowest part, which has a limit."""
    looks: list[Callable[[], Iterable[Finding]]] = [
        lambda: [python()],
        torch_and_device,
        lambda: [allocator()],
        lambda: [installed("megatron-core", EVERY_SWEEP, JOBS)],
        lambda: [extension("deep_ep", f"{ON_DEVICE} with HybridEP", DEEP_EP)],
        lambda: [extension("transformer_engine", f"{ON_DEVICE} with its layers", TE)],
        slurm,
        lambda: [wandb()],
        lambda: [chromium()],
        partial(place, out),
    ]
    with ThreadPoolExecutor(len(looks)) as threads:
        found = threads.map(lambda look: list(look()), looks)
        return [finding for part in found for finding in part]


def lacking(findings: Iterable[Finding], required: Iterable[str]) -> list[Finding]:
    """Return what is needed, always or by name, and is not there or does not work."""
    names = set(required)
    return [
        finding
        for finding in findings
        if not finding.is_ok and (finding.needed_for == EVERY_SWEEP or finding.name in names)
    ]
