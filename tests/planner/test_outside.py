"""What a first call brings outside tensors, against the published growth of one."""

import pytest

from planner import Batch, Step, Topology, compile_pricer
from planner.outside import outside_bytes
from tests.conftest import qwen

SEEN = 3.82e9
"""Seed 000: growth outside PyTorch of a cold call, EP2 and CP2, 194,753 tokens, two H200s."""

BY_FORMULA = 2_119_598_080
"""Seed 000: "about 2.1 GB" of it in HybridEP's buffers; domain facts B.6, worked by hand."""

CELL = Topology(cp=2, ep=2)


def test_growth_of_the_published_call_lies_within_its_interval() -> None:
    """Published: 3.82 GB = 2.12 GB by the buffers' formula + 1.70 GB that no formula tells."""
    pricer = compile_pricer(qwen(num_layers=8), CELL, Step(), coefficients="art-954")
    price = max(
        pricer.price_ranks(Batch(requests=(194_753,))), key=lambda price: price.growth_bytes
    )
    assert price.growth_bytes == BY_FORMULA
    first = outside_bytes(qwen(num_layers=8), CELL, Step(device="cuda"), inside=0).first_call()
    assert BY_FORMULA + first.low_bytes <= SEEN <= BY_FORMULA + first.bound_bytes
    assert BY_FORMULA + first.expected_bytes == pytest.approx(SEEN, rel=0.20)


def test_a_first_call_brings_communicators_and_workspace_but_no_context() -> None:
    """Derivation: groups that a step calls; one rank has none of them, but a workspace."""
    step = Step(device="cuda")
    pair = outside_bytes(qwen(), CELL, step, inside=10**9)
    assert [line.term for line in pair.first_call().lines] == [
        *("nccl.world", "nccl.cp", "nccl.dp·cp", "nccl.ep", "libraries.cublas"),
    ]
    alone = outside_bytes(qwen(), Topology(), step, inside=10**9)
    assert [line.term for line in alone.first_call().lines] == ["libraries.cublas"]
    assert {line.term for line in alone.lines} - {"libraries.cublas"} == {
        "runtime.context",
        "allocator.fragments",
    }


def test_every_figure_has_an_interval_around_it_and_a_source() -> None:
    """Law: low <= expected <= bound, and somebody has said so."""
    for line in outside_bytes(qwen(), CELL, Step(device="cuda"), inside=10**9).lines:
        assert line.low <= line.expected <= line.bound, line.term
        assert line.source
