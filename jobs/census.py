"""Measure how random weights route: ``python -m jobs.census --model MODEL.json --out FOLDER``.

Runs the model on one rank over text that no call of a sweep uses, and writes each expert's share of
the routed rows, per layer, to ``FOLDER/routing.json``. A planner that knows these shares expects
the rows that arrive; without them it can only expect an even share and allow for the rest.
"""

import argparse
import json
import logging
import tempfile
from pathlib import Path

from jobs.backend import cpu
from jobs.checkpoint import ROUTING
from jobs.model.build import ModelUnderTest
from jobs.model.census import busiest_shares, held_out, routing_shares
from jobs.model.weights import draw_weights
from jobs.routing_file import LENGTH, REQUESTS
from jobs.spec import read_model
from jobs.text import corpus_hash
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

log = logging.getLogger("census")


def measure(model: Model, seed: int, folder: Path) -> None:
    """Draw the weights that a cell with this seed draws; write their routing into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        cpu.start(0, 1, Topology(), f"file://{scratch}/rendezvous")
        try:
            drawn = ModelUnderTest(model, Step(recompute="none", lora_rank=0), "alltoall")
            draw_weights(drawn, seed)
            batches = held_out(LENGTH, REQUESTS)
            shares = routing_shares(drawn, batches)
        finally:
            cpu.stop()
        found = Path(scratch) / ROUTING
        found.write_text(
            json.dumps({"tokens": REQUESTS * LENGTH, "shares": shares, "text": corpus_hash()})
            + "\n"
        )
        found.replace(folder / ROUTING)
    for ep in (2, 4):
        if model.num_experts % ep == 0:
            busiest = " ".join(f"{share:.2f}" for share in busiest_shares(shares, ep))
            log.info("busiest of %d expert ranks over an even share, per layer: %s", ep, busiest)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m jobs.census", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="JSON of planner.Model fields")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, required=True, help="seed of the weights")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    model = read_model(json.loads(arguments.model.read_text()), str(arguments.model))
    measure(model, arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
