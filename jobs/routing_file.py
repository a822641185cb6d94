"""Where the measured routing of random weights lies: a folder with `routing.json`. No torch.

Routing follows from the weights and the text, so that it is measured once, on text that no call
uses, as a trainer knows it from the step before.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from jobs.checkpoint import ROUTING, read_routing
from jobs.spec import CellSpec
from jobs.text import corpus_hash
from planner.model import Model
from planner.routing import Routing

REQUESTS, LENGTH = 64, 256
"""Requests of the census, and tokens of each."""

VERSION = 1
"""Raised when `jobs.census` would measure something else from the same arguments."""


def census_name(model: Model, seed: int) -> str:
    """Name the folder after all that decides its content: architecture, seed, text, version."""
    identity = {
        "model": asdict(model),
        "seed": seed,
        "census": [REQUESTS, LENGTH],
        "text": corpus_hash(),
        "version": VERSION,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return f"{model.name}-random-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_measured(folder: Path) -> bool:
    """Whether the folder holds a measured routing, renamed into place when it is whole."""
    return (folder / ROUTING).is_file()


def routing_digest(folder: Path) -> str:
    """Return the SHA-256 of the measured routing."""
    return hashlib.sha256((folder / ROUTING).read_bytes()).hexdigest()


def routing_of(spec: CellSpec) -> Routing:
    """Return what is known of a cell's routing: even, measured beside its weights, or skewed."""
    model, weights = spec.model, spec.weights
    if weights.routing == "skewed":
        return Routing.skewed(
            model.num_experts, model.num_layers, spec.topology.ep, weights.imbalance
        )
    if weights.routing == "measured" and weights.path:
        return Routing.measured(read_routing(Path(weights.path)))
    return Routing.balanced()
