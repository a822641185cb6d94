"""The rules against the real model: Megatron's layers on one and two ranks, every storage followed.

The file is its own worker: ``python test_attribution_model.py RANK FOLDER`` runs the cases as one
of two ranks and writes ``FOLDER/RANK.json``.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

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
from planner.terms import TERMS
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


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """Figures of every case, rank and call, as {(case, rank): {call: figures}}."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        output = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(output)
    return {
        (name, rank): found
        for rank in (0, 1)
        for name, found in json.loads((folder / f"{rank}.json").read_text()).items()
    }


def each_call(observed):
    """Go through (case, rank, call, figures)."""
    for (name, rank), calls in observed.items():
        for temperature in CALLS:
            yield name, rank, temperature, calls[temperature]


def test_every_byte_at_the_peak_has_a_term(observed):
    """Reference: the law that terms sum to the working set; at most 1 % may be without one."""
    for *where, seen in each_call(observed):
        attributed = sum(seen["terms"].values())
        assert attributed <= seen["working_set"], where
        assert attributed >= 0.99 * seen["working_set"], (where, seen["unattributed_at_peak"])


@pytest.mark.parametrize(
    "name",
    [
        "ep1",
        "linear attention, ep1",
        "all adapted, ep1",
        "linear attention, all adapted, ep1",
    ],
)
def test_the_table_prices_each_term_that_is_there(observed, name):
    """Reference: the ledger's trace; at EP1 every row arrives, so that nothing is left to chance.

    A storage takes whole blocks of 512 bytes, so small ones may be more than their shape.
    """
    price = price_of(cell(name))
    seen = observed[name, 0]["warm"]
    assert abs(seen["working_set"] - price.expected_bytes) <= 0.01 * price.expected_bytes
    for term in {*seen["terms"], *price.terms}:
        there, priced = seen["terms"].get(term, 0), price.terms.get(term, 0)
        assert abs(there - priced) <= max(0.01 * priced, 16 * 512), term


def test_the_rules_backward_is_priced_where_it_is_the_peak(observed):
    """Reference: the ledger's trace of a model whose mixers hold more than its experts."""
    name = "mixers above experts"
    price = price_of(cell(name))
    seen = observed[name, 0]["warm"]
    assert seen["peak_at"]["op"] == "peakcast.gated_delta_rule_backward"
    assert price.peak_moment == "backward_mixer"
    assert abs(seen["working_set"] - price.expected_bytes) <= 0.02 * price.expected_bytes
    for term in ("gdn.inputs", "gdn.keys", "gdn.heads", "gdn.mixing", "gdn.scalars"):
        priced = price.terms[term]
        assert abs(seen["terms"][term] - priced) <= max(0.01 * priced, 8 * 512), term


def test_every_storage_of_the_whole_call_has_a_term(observed):
    """Reference: the peak may move to any moment, so none may hold what no rule knows."""
    for *where, seen in each_call(observed):
        assert not seen["unattributed"], where


def test_every_rule_is_used(observed):
    """Reference: a rule that nothing matches is a mistake or has outlived its model."""
    used = {rule for *_, seen in each_call(observed) for rule in seen["used"]}
    assert all_rules() - used == set()


def test_rules_speak_of_the_planners_terms():
    """Reference: the planner's catalogue, and the kind of bytes that its tables leave unpriced."""
    known = {term.name for term in TERMS} | {"weights.gradients"}
    assert {rule.partition(":")[0] for rule in all_rules()} <= known


def test_megatrons_checkpoint_is_told_apart(observed):
    """Reference: full recompute runs each layer's forward again, operator by operator."""
    for name, *where, seen in each_call(observed):
        if cell(name).step.recompute == "full":
            assert seen["made"]["recompute"] == seen["made"]["forward"], (name, where)
        else:
            assert not seen["made"]["recompute"], (name, where)


def test_large_storages_know_their_module(observed):
    """Reference: outside modules the model makes only angles, and layer 0's last gradient."""
    for name, rank, temperature, seen in each_call(observed):
        places = {label.split(" (top) ")[1].split()[0] for label in seen["nowhere"]}
        assert places <= {"new_empty_strided"}, (name, rank, temperature)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["ep2", "ep2 cp2"])
def test_routed_terms_are_copies_of_routed_rows(observed, name, rank):
    """Reference: derived from the experts' source, at the adapter sum of FC2 run again.

    Live per routed row: the dispatched input (H); FC1's sum (2F), saved by SwiGLU; SwiGLU (F);
    base, adapter and sum of FC2 (3 H); an intermediate of each adapter (2 r). All bf16.
    """
    for temperature in CALLS:
        seen = observed[name, rank][temperature]
        assert seen["peak_at"]["module"].endswith("mlp.experts.fc2")
        assert seen["peak_at"]["phase"] == "recompute"
        layer = int(seen["peak_at"]["module"].split(".")[2])
        row = 2 * seen["rows"][layer]
        wanted = {
            "experts.dispatched_inputs": MODEL.hidden * row,
            "experts.fc1_outputs": 2 * MODEL.expert_hidden * row,
            "experts.fc2_inputs": MODEL.expert_hidden * row,
            "experts.fc2_outputs": 3 * MODEL.hidden * row,
            "experts.adapter_intermediates": 2 * 4 * row,
        }
        for term, nbytes in wanted.items():
            assert 0 <= seen["terms"][term] - nbytes < 3 * 512, term


def test_all_to_all_at_ep1_holds_two_dispatched_inputs(observed):
    """Reference: published traces of the all-to-all dispatcher: permuted rows, and rows sorted."""
    seen = observed["ep1", 0]["warm"]
    assert seen["terms"]["experts.dispatched_inputs"] == 2 * sum(REQUESTS) * 2 * MODEL.hidden * 2


def test_a_warm_call_begins_with_what_the_cold_one_left(observed):
    """Reference: conservation; gradients are dropped between the calls, the rest is held over."""
    for (name, rank), calls in observed.items():
        cold, warm = calls["cold"], calls["warm"]
        assert cold["held_over"] == 0, (name, rank)
        assert warm["held_over"] == cold["left_over"] - cold["gradients"] > 0, (name, rank)


def test_cold_and_warm_share_the_working_set(observed):
    """Reference: the same text on the same weights allocates the same.

    Not where an all-to-all goes over gloo, in a dispatcher or in linear attention over cp: its
    threads let go of what they sent a moment later or sooner.
    """
    for (name, rank), calls in observed.items():
        if name in ("ep2 cp2, all-to-all", "linear attention, ep2 cp2"):
            continue
        for figure in ("working_set", "retained", "left_over", "terms", "peak_at"):
            assert calls["cold"][figure] == calls["warm"][figure], (name, rank, figure)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
