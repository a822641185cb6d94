"""One of four real ranks that run the cells which fake ranks must equal, and record their routing.

``python fake_worker.py RANK FOLDER`` writes ``FOLDER/result.RANK.json``: for each cell and call
what the ledger saw, and the rows that this rank sent to each expert in each layer.
"""

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from small_cells import cell

from jobs.backend import cpu
from jobs.hybridep_handle import outside_pytorch
from jobs.spec import Calls, CellSpec, Meter
from planner.mixers import LinearAttention
from planner.model import Model

MODEL = Model(
    name="mixed",  # a Gated DeltaNet layer and one of gated attention
    num_layers=2,
    hidden=256,
    vocab=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=8,
    top_k=2,
    expert_hidden=96,
    shared_expert_hidden=64,
    shared_expert_gate=True,
    gated_attention=True,
    full_attention_interval=2,
    linear_attention=LinearAttention(
        key_heads=4, key_dim=32, value_heads=8, value_dim=32, conv_width=4
    ),
)
REQUESTS = (192, 130, 260, 156, 224, 198)
CASES = {
    "ep1_cp1 alltoall": ("ep1_cp1", {}),
    "ep1_cp2 alltoall": ("ep1_cp2", {}),
    "ep2_cp1 hybridep": ("ep2_cp1", {}),
    "ep2_cp1 alltoall": ("ep2_cp1", {"dispatcher": "alltoall"}),
    "ep2_cp2 hybridep": ("ep2_cp2", {}),
    "ep2_cp2 alltoall": ("ep2_cp2", {"dispatcher": "alltoall"}),
    "ep4_cp1 hybridep": ("ep4_cp1", {}),
    "ep4_cp1 alltoall": ("ep4_cp1", {"dispatcher": "alltoall"}),
    "ep4_cp2 hybridep": ("ep4_cp2", {}),
    "ep4_cp2 alltoall": ("ep4_cp2", {"dispatcher": "alltoall"}),
    "ep2_cp1 hybridep, released": ("ep2_cp1", {"release_dispatcher_state": True}),
    "ep1_cp1 alltoall, nothing recomputed": ("ep1_cp1", {"recompute": "none"}),
}
CALLS = 2
SETTLED_S = 0.01


def spec_of(case: str, backend: str) -> CellSpec:
    """Return the cell of a case, on real ranks or on fake ones."""
    topology, step = CASES[case]
    made = cell(topology, REQUESTS, MODEL, dtype="bf16", **{"head_chunk": 128, **step})
    return replace(
        made,
        backend=backend,
        calls=Calls(name="two", measured=CALLS),
        meter=Meter(allow_unpriced=True),
    )


def record_routing(model):
    """Return a list that holds, for each layer, the rows of the last forward to each expert."""
    rows = [[] for _ in model.decoder.layers]

    def keep(layer):
        def note(_module, _args, output):
            with outside_pytorch():
                rows[layer] = output[1].sum(0).tolist()

        return note

    for index, layer in enumerate(model.decoder.layers):
        layer.mlp.router.register_forward_hook(keep(index))
    return rows


def settle_all_to_all() -> None:
    """Wait after each all-to-all until gloo's threads, too, have let go of what they sent.

    They do so a moment after the call has returned; what is live meanwhile is a matter of chance.
    """
    send = dist.all_to_all_single

    def send_and_settle(*args, **kwargs):
        work = send(*args, **kwargs)
        time.sleep(SETTLED_S)
        return work

    dist.all_to_all_single = send_and_settle


def run(case: str, rank: int, rendezvous: str):
    """Run a case's calls on this rank; return what was seen and how rows were routed."""
    from jobs.live import LiveLoop, RecordBase
    from jobs.meter.ledger import Ledger
    from jobs.model.build import build_model
    from jobs.model.weights import load_weights
    from jobs.rank import pricer_of

    spec = spec_of(case, "cpu")
    cpu.start(rank, spec.topology.world, spec.topology, rendezvous)
    model = build_model(spec)
    load_weights(model, spec)
    rows = record_routing(model)
    ledger = Ledger()
    ledger.attach(model)
    loop = LiveLoop(spec, rank, model, pricer_of(spec), ledger, RecordBase(spec, 0, rank, {}))
    found = []
    for call in range(CALLS):
        record = loop.call(call)
        found.append({"observed": asdict(record.observed), "routing": list(rows)})
    cpu.stop()
    return found


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    settle_all_to_all()
    found = {
        case: run(case, rank, f"file://{folder}/case.{index}")
        for index, case in enumerate(CASES)
        if rank < spec_of(case, "cpu").topology.world
    }
    (folder / f"result.{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
