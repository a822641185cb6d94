"""What following storages costs: one step of the small model with and without the ledger."""

import sys
from statistics import median
from time import process_time

import pytest

from jobs.spec import Calls, CellSpec, Weights, Workload
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

CELL = CellSpec(
    model=Model(
        name="one layer",
        num_layers=1,
        hidden=256,
        vocab=256,
        num_heads=8,
        num_kv_heads=2,
        head_dim=32,
        num_experts=16,
        top_k=4,
        expert_hidden=128,
        shared_expert_hidden=128,
        shared_expert_gate=True,
    ),
    topology=Topology(),
    topology_name="ep1_cp1",
    step=Step(),
    weights=Weights(name="random"),
    workload=Workload(name="2x512", requests=(512, 512)),
    calls=Calls(name="one", measured=1),
)
ROUNDS = 15
TARGET, LIMIT = 1.15, 1.5
"""What the ledger is built for, and what a busy machine may make of it."""


@pytest.mark.bench
def test_ledger_overhead(tmp_path):
    """Reference: the same step without the ledger, turn by turn in one process, CPU time.

    One MoE layer of 1024 tokens in bf16 with adapters and recompute, forward and backward.
    """
    import torch

    torch.set_num_threads(1)
    from jobs.backend import cpu

    cpu.start(0, 1, CELL.topology, f"file://{tmp_path}/rendezvous")
    try:
        plain, followed, inside = measure()
    finally:
        cpu.stop()
    ratio = median(followed) / median(plain)
    sys.stdout.write(
        f"\nledger: {ratio:.3f} x a step (target {TARGET}); "
        f"{median(plain) * 1e3:.1f} ms without, {median(followed) * 1e3:.1f} ms with, "
        f"{median(inside) * 1e3:.1f} ms in its own code\n"
    )
    assert ratio < LIMIT


def measure():
    """Return seconds of each step without and with the ledger, and in the ledger's code."""
    from jobs.meter.ledger import Ledger
    from jobs.model.build import build_model
    from jobs.model.weights import load_weights
    from jobs.workload import local_batch

    model = build_model(CELL)
    load_weights(model, CELL)
    batch = local_batch(CELL, 0, 0)
    ledger = Ledger()
    ledger.attach(model)

    def step():
        model(batch).backward()
        model.zero_grad(set_to_none=True)

    def timed(run):
        start = process_time()
        run()
        return process_time() - start

    def under_ledger():
        with ledger.call() as call:
            step()
        inside.append(call.result.ledger_s)

    plain, followed, inside = [], [], []
    step()
    under_ledger()
    for _ in range(ROUNDS):
        plain.append(timed(step))
        followed.append(timed(under_ledger))
    return plain, followed, inside
