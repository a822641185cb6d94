"""Published estimates where recompute is not full, to the byte."""

import csv
import json

import pytest

from planner import Coefficients, LinearAttention, Model, Phase, Step, Topology
from planner.compiled import compile_terms
from planner.figures import Figures
from planner.loads import NO_GROWTH
from planner.local import localize
from planner.work import Work
from tests.conftest import GOLDEN

CELLS = list(csv.DictReader((GOLDEN / "nonfull_cells.csv").open()))
MODELS = json.loads((GOLDEN / "nonfull_models.json").read_text())["models"]
TABLE = Coefficients.load("art-nonfull")
FINAL = [c for c in CELLS if c["phase"] in ("final", "eager_control", "cp2")]
OLDER = [c for c in CELLS if c["phase"] == "bss"]


def read_model(name: str) -> tuple[Model, bool]:
    sizes = {"num_experts": 0, "top_k": 0, "expert_hidden": 0, **MODELS[name]}
    fused = sizes.pop("fused_activation", True)
    values = sizes.pop("value_heads", None)
    if values:
        sizes |= {"gated_attention": True, "full_attention_interval": 4}
        sizes["linear_attention"] = LinearAttention(
            key_heads=16, key_dim=128, value_heads=values, value_dim=128, conv_width=4
        )
    return Model(name=name, **sizes), fused


def sizes_of(cell: dict) -> tuple[int, int]:
    """Return logical tokens, and segments: requests and the prefix they share, if they do."""
    first, _, second = cell["lengths"].partition("+")
    each, _, count = cell["lengths"].partition("x")
    logical = int(first) + int(second) if second else int(each) * int(count)
    requests = 2 if second else int(count)
    return logical, requests + (int(cell["packed_rows"]) < logical)


def estimate(cell: dict, *, states: bool = True) -> int:
    """Return the published figure: 1.1 x (what the table prices + the caller's outputs)."""
    model, fused = read_model(cell["model"])
    tp, cp, ep = (int(cell[axis]) for axis in ("tp", "cp", "ep"))
    modules = tuple(cell["recompute"].removeprefix("selective ").split("+"))
    step = Step(
        recompute="none" if cell["recompute"] == "none" else "selective",
        recompute_modules=() if cell["recompute"] == "none" else modules,
        fused_activation=fused,
        sequence_parallel=cell["sequence_parallel"] == "1",
        dispatcher="alltoall",
    )
    local = localize(model, Topology(tp=tp, cp=cp, ep=ep), step)
    compiled = compile_terms(local, TABLE)
    assert not compiled.unpriced
    logical, segments = sizes_of(cell)
    segments = segments if states else 0
    packed = int(cell["packed_rows"])
    rows = packed if model.is_moe else int(cell["rows_busiest_rank"])
    work = Work(local.layers, rows, segments, 0, 0, 0, 0)
    outputs = 2 * model.hidden * logical * (2 if cp > 1 else 1)
    priced = Figures(compiled, work, TABLE.margin_milli, NO_GROWTH).expected(Phase.FORWARD)
    return (priced + outputs) * 11 // 10


def _name(cell: dict) -> str:
    return "-".join(cell[k] for k in ("model", "tp", "cp", "ep", "recompute", "lengths", "phase"))


@pytest.mark.parametrize("cell", FINAL, ids=_name)
def test_published_estimate(cell):
    """Reference: the recompute campaign's published estimates, to the byte."""
    assert estimate(cell) == int(cell["published_estimate_bytes"])


@pytest.mark.parametrize("cell", OLDER, ids=_name)
def test_published_estimate_before_segment_states(cell):
    """Reference: rows of the revision before states of segments were priced, to the byte."""
    assert estimate(cell, states=False) == int(cell["published_estimate_bytes"])
