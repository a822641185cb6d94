"""What is known of the router, and the routed rows that follow."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import Batch, ConfigError, Routing, Step, Topology, compile_pricer
from planner.plain import canonical
from tests.conftest import qwen

MODEL = qwen(num_layers=2)
TOPOLOGY = Topology(dp=4, ep=4)
BATCH = Batch(requests=(1000,) * 4)
EVEN = 1000 * MODEL.top_k
"""Rows of a rank under even routing."""


def works(routing: Routing, topology: Topology = TOPOLOGY):
    """Return the counts of every rank."""
    pricer = compile_pricer(MODEL, topology, Step(), routing=routing)
    return [price.figures.work for price in pricer.price_ranks(BATCH)]


def lumped(share: float) -> list[list[float]]:
    """Shares of which expert rank 0 of four receives ``share``."""
    local = MODEL.num_experts // 4
    rest = (1 - share) / (3 * local)
    return [[share / local] * local + [rest] * (3 * local)] * MODEL.num_layers


def test_an_allowance_takes_the_tables_place():
    """Derivation: ceil(top-k x factor) rows a token; the expected rows stay."""
    for factor, rows in ((1.0, 8), (1.25, 10), (3.0, 24)):
        for work in works(Routing.balanced(allowance=factor)):
            assert (work.rows, work.more_rows) == (EVEN, 1000 * rows)
    for factor in (1.0, 2.0):
        work = works(Routing.measured(lumped(0.3), allowance=factor))[0]
        assert work.rows == pytest.approx(0.3 * 4 * EVEN, abs=1)
        assert work.more_rows == pytest.approx(factor * work.rows, abs=1)


def test_the_worst_case_is_every_pair_of_the_group():
    """Derivation: 64 experts a rank hold all eight pairs of every token of four ranks."""
    for work in works(Routing.worst_case()):
        assert work.rows == work.more_rows == 4 * EVEN
    bound = [
        compile_pricer(MODEL, TOPOLOGY, Step(), routing=r).price(BATCH).bound_bytes
        for r in (Routing.worst_case(), Routing.balanced(allowance=4.0), Routing.balanced())
    ]
    assert bound[0] == bound[1] > bound[2]
    assert (
        works(Routing.worst_case(), Topology())[0].rows == 4 * EVEN
    )  # EP1: all tokens are its own


def test_sampled_calls_give_their_mean_and_the_quantile_of_each_rank():
    """By hand: five calls in which rank 0 had 0.2 to 0.6 of the pairs."""
    calls = [lumped(share) for share in (0.2, 0.3, 0.4, 0.5, 0.6)]
    for quantile, share in ((0.2, 0.4), (0.8, 0.5), (1.0, 0.6)):  # never under what is expected
        work = works(Routing.sampled(calls, quantile))[0]
        assert work.rows == pytest.approx(0.4 * 4 * EVEN, abs=1)
        assert work.more_rows == pytest.approx(share * 4 * EVEN, abs=1)
    other = works(Routing.sampled(calls, 1.0))[1]
    assert other.rows == pytest.approx(0.2 * 4 * EVEN, abs=1)
    assert other.more_rows == pytest.approx(0.8 / 3 * 4 * EVEN, abs=1)


@given(st.lists(st.floats(0.05, 0.9), min_size=1, max_size=6), st.floats(0.01, 1.0))
def test_a_sampled_bound_lies_between_the_mean_and_the_worst_call(shares, quantile):
    """Law: a quantile of calls is one of them."""
    sampled = Routing.sampled([lumped(share) for share in shares], quantile)
    single = [Routing.measured(lumped(share), allowance=1.0) for share in shares]
    for rank in (0, 3):
        most = max(works(routing)[rank].more_rows for routing in single)
        assert works(sampled)[rank].rows <= works(sampled)[rank].more_rows <= most + 1


@pytest.mark.parametrize(
    "routing",
    [
        Routing.balanced(),
        Routing.balanced(allowance=1.2),
        Routing.worst_case(),
        Routing.measured(lumped(0.3)),
        Routing.sampled([lumped(0.3), lumped(0.4)], 0.5),
    ],
    ids=["balanced", "allowance", "worst", "measured", "sampled"],
)
def test_a_routing_is_read_back_from_json(routing):
    """Law: a decision that is replayed is taken with the routing that it was taken with."""
    assert Routing.from_plain(json.loads(canonical(routing.to_plain()))) == routing


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Routing.balanced(allowance=0.5), "allowance must be at least 1; got 0.5"),
        (lambda: Routing.sampled([lumped(0.3)], 0.0), r"quantile must lie in \(0, 1\]; got 0.0"),
        (lambda: Routing.sampled([]), "got 0 calls of 0 shapes"),
        (lambda: Routing.sampled([lumped(0.3), lumped(0.3)[:1]]), "2 calls of 2 shapes"),
        (lambda: Routing.sampled([[[0.5, 0.4]]]), "sum to 0.900000"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    """Contract: an error says the value and what would do."""
    with pytest.raises(ConfigError, match=message):
        make()
