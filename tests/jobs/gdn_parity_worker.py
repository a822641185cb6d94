"""One of two ranks that run a model with Gated DeltaNet layers and compare with one rank.

``python gdn_parity_worker.py RANK FOLDER`` writes ``FOLDER/result.RANK.json`` as parity_worker.py
does: for each case this rank's loss and the worst relative gradient error.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from parity_worker import compare, run
from small_cells import MODEL, cell

from jobs.backend import cpu
from planner.mixers import LinearAttention

GDN = replace(
    MODEL,
    name="small with linear attention",
    num_layers=3,
    full_attention_interval=3,
    gated_attention=True,
    linear_attention=LinearAttention(
        key_heads=2, key_dim=12, value_heads=4, value_dim=8, conv_width=4
    ),
)
REQUESTS = (140, 33, 16, 31)
TRAINED = {"lora_rank": 0, "recompute": "none"}
ADAPTED = {"adapters": "all"}
REFERENCES = {"reference": {}, "trained reference": TRAINED, "adapted reference": ADAPTED}
CASES = {
    "one rank, no recompute": ("ep1_cp1", {"recompute": "none"}, None),
    "ep1_cp2": ("ep1_cp2", {}, None),
    "ep2_cp1": ("ep2_cp1", {}, None),
    "ep2_cp2 hybridep": ("ep2_cp2", {}, None),
    "ep2_cp2 alltoall": ("ep2_cp2", {"dispatcher": "alltoall"}, None),
    "ep2_cp1, empty replica": ("ep2_cp1", {}, ((), (0, 1, 2, 3))),
    "ep1_cp2, base trains": ("ep1_cp2", TRAINED, None),
    "ep1_cp2, all adapted": ("ep1_cp2", ADAPTED, None),
    "ep2_cp2, all adapted": ("ep2_cp2", ADAPTED, None),
}


def reference_of(case: str) -> str:
    """Name of the run on one rank that a case is compared with."""
    step = CASES[case][1]
    return next((name for name, own in REFERENCES.items() if own is step), "reference")


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    references, results = {}, {}
    for index, (name, step) in enumerate(REFERENCES.items()):
        cpu.start(0, 1, cell().topology, f"file://{folder}/reference.{index}.{rank}")
        spec = cell(model=GDN, requests=REQUESTS, **step)
        loss, gradients, _, _ = run(spec, 0, None)
        references[name] = gradients
        results[name] = {
            "loss": loss,
            "gradients": len(gradients),
            "nonzero": sum(bool(gradient.any()) for gradient in gradients.values()),
        }
        cpu.stop()
    for index, (name, (topology, step, replicas)) in enumerate(CASES.items()):
        spec = cell(topology, model=GDN, requests=REQUESTS, **step)
        if rank >= spec.topology.world:
            continue
        cpu.start(rank, spec.topology.world, spec.topology, f"file://{folder}/case.{index}")
        loss, gradients, _, _ = run(spec, rank, replicas)
        error, where = compare(gradients, references[reference_of(name)])
        results[name] = {
            "loss": loss,
            "error": error,
            "where": where,
            "gradients": sorted(gradients),
        }
        cpu.stop()
    (folder / f"result.{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
