"""One of four ranks that run the small model under every topology and compare with one rank.

``python parity_worker.py RANK FOLDER`` writes ``FOLDER/result.RANK.json``: for each case the loss
of this rank and the worst relative gradient error with the name of its parameter.
"""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from small_cells import MODEL, cell

from jobs import hybridep
from jobs.backend import cpu

SEED = 913
CASES = {
    "one rank, no recompute": ("ep1_cp1", {"recompute": "none"}, None),
    "one rank, state released": ("ep1_cp1", {"release_dispatcher_state": True}, None),
    "ep1_cp2 alltoall": ("ep1_cp2", {}, None),
    "ep2_cp1 alltoall": ("ep2_cp1", {"dispatcher": "alltoall"}, None),
    "ep2_cp1 hybridep": ("ep2_cp1", {}, None),
    "ep2_cp1 hybridep, no recompute": ("ep2_cp1", {"recompute": "none"}, None),
    "ep2_cp1 hybridep, state released": ("ep2_cp1", {"release_dispatcher_state": True}, None),
    "ep2_cp2 alltoall": ("ep2_cp2", {"dispatcher": "alltoall"}, None),
    "ep2_cp2 hybridep": ("ep2_cp2", {}, None),
    "ep4_cp1 alltoall": ("ep4_cp1", {"dispatcher": "alltoall"}, None),
    "ep4_cp1 hybridep": ("ep4_cp1", {}, None),
    "ep4_cp2 alltoall": ("ep4_cp2", {"dispatcher": "alltoall"}, None),
    "ep4_cp2 hybridep": ("ep4_cp2", {}, None),
    "ep2_cp1 alltoall, empty replica": (
        "ep2_cp1",
        {"dispatcher": "alltoall"},
        ((0, 1, 2, 3), ()),
    ),
    "ep2_cp1 hybridep, empty replica": ("ep2_cp1", {}, ((), (0, 1, 2, 3))),
    "ep4_cp2 hybridep, empty replica": ("ep4_cp2", {}, ((0, 1, 2, 3), ())),
    "ep4_cp2 alltoall, empty replica": (
        "ep4_cp2",
        {"dispatcher": "alltoall"},
        ((), (0, 1, 2, 3)),
    ),
}


def run(spec, rank, replicas):
    """One call; return its loss on this rank and the reduced gradients by global name."""
    from jobs.model.build import build_model, routed_rows
    from jobs.model.gradients import reduce_gradients
    from jobs.model.names import global_parameters
    from jobs.model.weights import load_weights
    from jobs.workload import local_batch

    model = build_model(spec)
    load_weights(model, spec)
    requests = None if replicas is None else replicas[spec.topology.dp_rank(rank)]
    batch = local_batch(spec, rank, 0, requests)
    loss = model(batch)
    loss.backward()
    reduce_gradients(model)
    gradients = {
        named.name: named.gradient
        for named in global_parameters(model)
        if named.parameter.requires_grad
    }
    return loss.item(), gradients, routed_rows(model), batch.layout.tokens


def compare(gradients, reference):
    """Return the largest error of a tensor relative to its largest entry, and where it is."""
    worst, where = 0.0, ""
    for name, gradient in gradients.items():
        error = (gradient - reference[name]).abs().max() / reference[name].abs().max()
        if not error <= worst:
            worst, where = error.item(), name
    return worst, where


def save_reference(folder):
    """Save the drawn weights as a checkpoint."""
    from jobs.model.build import build_model
    from jobs.model.hf_files import save_pretrained
    from jobs.model.weights import draw_weights

    model = build_model(cell())
    draw_weights(model, SEED)
    save_pretrained(model, MODEL, folder)


def load_reference(spec, folder):
    """Load the checkpoint over other weights; return what was read and what came out wrong."""
    from jobs.model import hf_files
    from jobs.model.build import build_model
    from jobs.model.names import global_parameters
    from jobs.model.weights import draw_weights

    wanted, model = build_model(spec), build_model(spec)
    draw_weights(wanted, SEED)
    draw_weights(model, SEED + 1)
    read = []

    @contextmanager
    def opened(path, framework):
        with safe_open(path, framework=framework) as file:
            yield Recorder(file, read)

    hf_files.safe_open = opened
    hf_files.load_pretrained(model, MODEL, folder)
    hf_files.safe_open = safe_open
    pairs = zip(global_parameters(model), global_parameters(wanted), strict=True)
    base = [(a, b) for a, b in pairs if ".lora_" not in a.name]
    wrong = [a.name for a, b in base if not torch.equal(a.data, b.data)]
    return {"read": read, "wrong": wrong, "parameters": len(base)}


class Recorder:
    """An open checkpoint file that notes the tensors whose values are read."""

    def __init__(self, file, read):
        self.file, self.read = file, read

    def __getattr__(self, name):
        return getattr(self.file, name)

    def get_tensor(self, name):
        self.read.append(name)
        return self.file.get_tensor(name)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    cpu.start(0, 1, cell().topology, f"file://{folder}/reference.{rank}")
    loss, reference, rows, _ = run(cell(), rank=0, replicas=None)
    if rank == 0:
        save_reference(folder / "checkpoint")
    cpu.stop()
    results = {"reference": {"loss": loss, "gradients": len(reference), "rows": rows}}
    for index, (name, (topology, step, replicas)) in enumerate(CASES.items()):
        spec = cell(topology, **step)
        if rank >= spec.topology.world:
            continue
        cpu.start(rank, spec.topology.world, spec.topology, f"file://{folder}/case.{index}")
        loss, gradients, rows, tokens = run(spec, rank, replicas)
        error, where = compare(gradients, reference)
        results[name] = {
            "loss": loss,
            "error": error,
            "where": where,
            "gradients": sorted(gradients),
            "rows": rows,
            "tokens": tokens,
            "held_bytes": hybridep.held_bytes(),
        }
        cpu.stop()
    spec = cell("ep4_cp1")
    cpu.start(rank, 4, spec.topology, f"file://{folder}/loading")
    results["loading"] = load_reference(spec, folder / "checkpoint")
    cpu.stop()
    (folder / f"result.{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
