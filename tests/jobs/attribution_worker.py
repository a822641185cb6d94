"""One of two ranks that run the cases which the ledger's rules are held to.

``python attribution_worker.py RANK FOLDER`` writes ``FOLDER/RANK.json``: for each case and call
what the ledger saw, term by term.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from jobs.meter.attribution import Hand, Rule, attribute
from jobs.meter.call import total
from jobs.meter.ledger import Ledger
from jobs.meter.rules import attribute_peak, rules, symbols
from jobs.spec import Calls, CellSpec, Weights, Workload
from planner.batch import Batch
from planner.mixers import LinearAttention
from planner.model import Model
from planner.price import Price
from planner.pricer import compile_pricer
from planner.step import Step
from planner.topology import Topology

MODEL = Model(
    name="distinct",  # no two widths are equal, so that a shape says what it is
    num_layers=3,
    hidden=160,
    vocab=272,
    num_heads=6,
    num_kv_heads=3,
    head_dim=16,
    num_experts=8,
    top_k=2,
    expert_hidden=36,
    shared_expert_hidden=52,
    shared_expert_gate=True,
)
GDN = replace(
    MODEL,
    name="distinct, linear attention",
    linear_layers=(1, 2),
    gated_attention=True,
    linear_attention=LinearAttention(
        key_heads=2, key_dim=20, value_heads=6, value_dim=28, conv_width=5
    ),
)
WIDE = replace(
    GDN,
    name="mixers above experts",
    hidden=64,
    expert_hidden=8,
    shared_expert_hidden=0,
    shared_expert_gate=False,
    linear_attention=LinearAttention(
        key_heads=4, key_dim=32, value_heads=8, value_dim=32, conv_width=4
    ),
)
REQUESTS = (96, 96, 96, 96)
ONE, DP2, CP2 = Topology(), Topology(dp=2, ep=2), Topology(cp=2, ep=2)
CASES = {
    "ep1": (ONE, {}),
    "ep1, base trains, nothing recomputed": (ONE, {"lora_rank": 0, "recompute": "none"}),
    "ep2": (DP2, {}),
    "ep2 cp2": (CP2, {}),
    "ep2 cp2, all-to-all": (CP2, {"dispatcher": "alltoall"}),
    "linear attention, ep1": (ONE, {}),
    "linear attention, base trains": (ONE, {"lora_rank": 0, "recompute": "none"}),
    "linear attention, ep2 cp2": (CP2, {}),
    "linear attention, all adapted, ep1": (ONE, {"adapters": "all"}),
    "linear attention, all adapted, ep2 cp2": (CP2, {"adapters": "all"}),
    "all adapted, ep1": (ONE, {"adapters": "all"}),
    "mixers above experts": (ONE, {}),
}
CALLS = ("cold", "warm")
AT_HAND = (Hand("forward", 1), Hand("head", 2), Hand("recompute", 0), Hand("backward", 0))


def cell(name: str) -> CellSpec:
    """The cell of a case."""
    topology, step = CASES[name]
    model = GDN if name.startswith("linear attention") else MODEL
    if name == "mixers above experts":
        model = WIDE
    return CellSpec(
        model=model,
        topology=topology,
        topology_name=name,
        step=Step(**{"lora_rank": 4, "head_chunk": 128, **step}),
        weights=Weights(name="random"),
        workload=Workload(name="short", requests=REQUESTS),
        calls=Calls(name="two", measured=2),
        coefficients="art-traced" if "adapters" in step else "megatron-local",
    )


def price_of(spec: CellSpec) -> Price:
    """What the cell's table says of its batch."""
    pricer = compile_pricer(spec.model, spec.topology, spec.step, coefficients=spec.coefficients)
    return pricer.price(Batch(requests=REQUESTS))


def named(rule: Rule) -> str:
    """A rule's term, and why."""
    return f"{rule.term}: {rule.why}"


def all_rules() -> set[str]:
    """The rules of every case."""
    cells = [cell(name) for name in CASES]
    return {named(rule) for spec in cells for rule in rules(spec.step, spec.topology)}


def figures(call, spec, tokens):
    """What the tests look at, of one call."""
    peak = attribute_peak(call, spec.model, spec.step, [tokens], spec.topology)
    sizes = symbols(spec.model, spec.step, [tokens], spec.topology.cp)
    known = rules(spec.step, spec.topology)
    everything = [attribute(call.allocations, known, sizes, hand) for hand in AT_HAND]
    in_layers = [a for a in call.allocations if a.module.startswith("decoder.layers.")]
    end = call.live_at(call.last_number)
    return {
        "working_set": call.working_set_bytes,
        "peak_at": call.peak_at,
        "retained": call.retained_bytes,
        "held_over": call.held_over_bytes,
        "left_over": call.left_over_bytes,
        "gradients": total(a for a in end if a.gradient_of),
        "terms": peak.terms,
        "unattributed_at_peak": [a.label() for a in peak.unattributed],
        "unattributed": [a.label() for moment in everything for a in moment.unattributed],
        "used": sorted({named(rule) for moment in everything for rule in moment.used}),
        "nowhere": [a.label() for a in call.allocations if not a.module and len(a.shape) > 2],
        "made": {
            phase: Counter(f"{a.module} {a.op} {a.shape}" for a in in_layers if a.phase == phase)
            for phase in ("forward", "recompute")
        },
    }


def run(name: str, rank: int, rendezvous: str):
    """Two calls of a case on the same text; return the figures of each."""
    from jobs.backend import cpu

    spec = cell(name)
    cpu.start(rank, spec.topology.world, spec.topology, rendezvous)
    from jobs.model.build import build_model, routed_rows
    from jobs.model.weights import load_weights
    from jobs.workload import local_batch

    model = build_model(spec)
    load_weights(model, spec)
    batch = local_batch(spec, rank, 0)
    ledger = Ledger()
    ledger.attach(model)
    for field in ("tokens", "targets", "positions"):
        ledger.register(field, getattr(batch, field))
    found = {}
    for temperature in CALLS:
        with ledger.call() as call:
            loss = model(batch)
            call.forward_done()
            loss.backward()
            del loss
        model.zero_grad(set_to_none=True)
        found[temperature] = figures(call.result, spec, batch.tokens.numel())
        found[temperature]["rows"] = routed_rows(model)
    cpu.stop()
    return found


def main(rank: int, folder: Path) -> None:
    """Run every case that this rank takes part in."""
    import torch

    torch.set_num_threads(1)
    found = {
        name: run(name, rank, f"file://{folder}/case{index}")
        for index, name in enumerate(CASES)
        if rank < cell(name).topology.world
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
