"""Published figures, to the byte where bytes are given. Each file names its source."""

import json

import pytest

from planner import Batch, LiveState, Moment, Step, Topology, compile_pricer
from planner.hybridep import buffer_bytes, near_balanced_tokens, padded_tokens
from tests.conftest import GOLDEN, qwen

RATES = json.loads((GOLDEN / "rates_per_local_token.json").read_text())
BUFFERS = json.loads((GOLDEN / "hybridep_buffers.json").read_text())
CALLS = json.loads((GOLDEN / "whole_call_art_954.json").read_text())


def _name(case: dict) -> str:
    degrees = "".join(f"{axis}{degree}" for axis, degree in case["topology"].items()) or "one-rank"
    return f"{case.get('name') or case['table']}-{degrees}-{case.get('moment', '')}"


@pytest.mark.parametrize("case", RATES["cases"], ids=_name)
def test_bytes_per_local_token_equal_the_seeds(case):
    """Reference: seeds 000 and 002, bytes per local token."""
    pricer = compile_pricer(
        qwen(), Topology(**case["topology"]), Step(), coefficients=case["table"]
    )
    rates = pricer.rates(Moment(case["moment"]))
    priced = sum(size for term, size in rates.items() if term.partition(".")[0] in case["families"])
    assert priced == case["bytes"]


def test_shared_return_says_so_where_it_is_not_priced():
    """Reference: seed 002, TP, PP and ETP must be 1; and what is not priced is said."""
    for topology in (Topology(dp=2, tp=2), Topology(pp=2), Topology(dp=2, etp=2)):
        pricer = compile_pricer(qwen(), topology, Step(), coefficients="art-shared")
        unpriced = {part.what: part.why for part in pricer.price(Batch(tokens=4096)).unpriced}
        axis = next(a for a in ("tp", "pp", "etp") if getattr(topology, a) == 2)
        assert f"only where {axis} is 1; here it is 2" in unpriced["shared.return"]


@pytest.mark.parametrize("case", BUFFERS["cases"], ids=_name)
def test_hybridep_buffer_of_a_call(case):
    """Reference: domain facts B.1 to B.6."""
    pricer = compile_pricer(qwen(), Topology(**case["topology"]), Step(), coefficients="art-954")
    cp = case["topology"]["cp"]
    shards = [case["tokens"] // cp] * cp
    shards[0] += case["tokens"] - sum(shards)
    price = pricer.price(Batch(rank_tokens=shards))
    assert price.buffer_tokens == case["padded_tokens"]
    assert price.growth_bytes == case["bytes"]


@pytest.mark.parametrize("case", BUFFERS["formula"], ids=lambda case: str(case["bytes"]))
def test_hybridep_formula(case):
    """Reference: domain facts B.6, published unit-test oracles."""
    padded = case["padded_tokens"]
    if "tokens" in case:
        assert padded_tokens(case["tokens"], case["ranks"]) == padded
    assert buffer_bytes(padded, ranks=case["ranks"], hidden=2048, num_experts=256) == case["bytes"]


def test_hybridep_capacity():
    """Reference: domain facts B.1, test oracle L 9523 at CP4."""
    for case in BUFFERS["capacity"]:
        capacity = near_balanced_tokens(case["longest"], case["cp"], case["busiest"])
        assert capacity == case["tokens"]


@pytest.mark.parametrize(
    ("tokens", "ranks", "padded"),
    [(1, 2, 512), (512, 2, 512), (513, 2, 576), (575, 1, 576), (577, 1, 640), (1001, 3, 1024)],
)
def test_hybridep_padding(tokens, ranks, padded):
    """Reference: by hand from domain B.2: to 4/gcd(4, ranks), at least 512, then to 64."""
    assert padded_tokens(tokens, ranks) == padded


def test_hybridep_group_is_ep_by_etp():
    """Reference: seed 000, the buffer spans the ETP x EP group: twice the ranks and rows."""
    ep2 = compile_pricer(qwen(), Topology(dp=4, ep=2), Step(), coefficients="art-954")
    both = compile_pricer(qwen(), Topology(dp=4, ep=2, etp=2), Step(), coefficients="art-954")
    assert both.buffer_bytes(1024) == 2 * ep2.buffer_bytes(1024) == 2 * 1024 * 2 * 5440


@pytest.mark.parametrize("case", CALLS["cases"], ids=lambda case: case["name"])
def test_whole_call_of_the_seed(case):
    """Reference: seed 000's table of predictions."""
    pricer = compile_pricer(
        qwen(num_layers=CALLS["num_layers"]),
        Topology(**case["topology"]),
        Step(),
        coefficients="art-954",
    )
    price = pricer.price(Batch(rank_tokens=CALLS["rank_tokens"]), LiveState(case["held_tokens"]))
    assert round(price.demand_bytes / 1e9, 1) == case["gigabytes"]
