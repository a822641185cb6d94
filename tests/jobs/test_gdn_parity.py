"""Gated DeltaNet layers and gated attention: every topology gives what one rank gives."""

from typing import Any

import pytest
from gdn_parity_worker import CASES, GDN, reference_of


@pytest.fixture(scope="module")
def ranks(run_ranks) -> list[dict[str, Any]]:
    return run_ranks("gdn_parity_worker.py", 2)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_every_gradient_are_those_of_one_rank(ranks, case):
    """Second implementation: the same model and tokens on one rank, fp32.

    Four requests, of up to three chunks of the rule; where the base trains, the gradients are also
    those of convolution, decay and gate, which context parallelism divides by heads; where all is
    adapted, those of the adapters on every projection.
    """
    reference = ranks[0][reference_of(case)]
    taking_part = [rank[case] for rank in ranks if case in rank]
    loss = sum(rank["loss"] for rank in taking_part)
    assert abs(loss - reference["loss"]) <= 1e-5 * abs(reference["loss"])
    for rank in taking_part:
        assert rank["error"] <= 1e-5, rank["where"]
    compared = {name for rank in taking_part for name in rank["gradients"]}
    assert len(compared) == reference["gradients"] == reference["nonzero"]


def test_gradients_reach_adapters_through_linear_attention(ranks):
    """Derivation: layer 1 is a Gated DeltaNet, so layer 0's adapters get theirs through it."""
    assert 1 in GDN.linear_attention_layers
    adapters = 4 * GDN.num_layers * GDN.num_experts
    assert ranks[0]["reference"]["nonzero"] == adapters


def test_every_projection_has_an_adapter(ranks):
    """Derivation: two factors on each of two projections of every mixer and shared expert."""
    dense = 2 * (2 + 2) * GDN.num_layers
    assert ranks[0]["adapted reference"]["nonzero"] == ranks[0]["reference"]["nonzero"] + dense
