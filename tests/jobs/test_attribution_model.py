"""The ledger's rules against the real model: Megatron's layers on one and two ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from attribution_worker import CALLS, MODEL, REQUESTS, all_rules, cell, price_of

from planner.terms import TERMS

WORKER = Path(__file__).with_name("attribution_worker.py")


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """Figures of every case, rank and call, as {(case, rank): {call: figures}}."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(folder)],
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
