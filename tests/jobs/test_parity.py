"""Every topology and dispatcher gives the loss and the gradients of one rank on the same tokens."""

from typing import Any

import pytest
from small_cells import MODEL

CASES = [
    *(f"ep1_cp2 {dispatcher}" for dispatcher in ("alltoall",)),
    *(
        f"{topology} {dispatcher}"
        for topology in ("ep2_cp1", "ep2_cp2", "ep4_cp1", "ep4_cp2")
        for dispatcher in ("alltoall", "hybridep")
    ),
    "one rank, no recompute",
    "one rank, state released",
    "ep2_cp1 hybridep, state released",
    "ep2_cp1 hybridep, no recompute",
    "ep2_cp1 alltoall, empty replica",
    "ep2_cp1 hybridep, empty replica",
    "ep4_cp2 alltoall, empty replica",
    "ep4_cp2 hybridep, empty replica",
]
LOCAL_TENSORS = 4 * MODEL.num_layers
"""Adapter tensors of one expert: two factors on FC1 and FC2 of each layer."""


@pytest.fixture(scope="module")
def ranks(run_ranks) -> list[dict[str, Any]]:
    return run_ranks("parity_worker.py", 4)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_every_gradient_are_those_of_one_rank(ranks, case):
    """Second implementation: the same model and tokens on one rank, fp32.

    Four requests of different lengths, two of which need padding at cp = 2; with adapters and
    recompute unless the case says otherwise; in "empty replica" one replica has no request, as in
    an uneven split.
    """
    reference = ranks[0]["reference"]["loss"]
    taking_part = [rank[case] for rank in ranks if case in rank]
    loss = sum(rank["loss"] for rank in taking_part)
    assert abs(loss - reference) <= 1e-5 * abs(reference)
    for rank in taking_part:
        assert rank["error"] <= 1e-5, rank["where"]
    compared = {name for rank in taking_part for name in rank["gradients"]}
    assert len(compared) == ranks[0]["reference"]["gradients"] == LOCAL_TENSORS * MODEL.num_experts


@pytest.mark.parametrize("case", CASES)
def test_every_token_is_routed_to_top_k_experts(ranks, case):
    """Conservation: the routed rows of each layer sum over ranks to tokens x top-k."""
    taking_part = [rank[case] for rank in ranks if case in rank]
    tokens = sum(rank["tokens"] for rank in taking_part)
    for layer in range(MODEL.num_layers):
        rows = [rank["rows"][layer] for rank in taking_part]
        assert sum(rows) == tokens * MODEL.top_k


def test_a_rank_without_requests_holds_no_token(ranks):
    """Derivation: an empty replica has no dummy tokens, so that nothing unpriced is allocated."""
    case = "ep4_cp2 hybridep, empty replica"
    assert [rank[case]["tokens"] for rank in ranks] == [54, 54, 0, 0]


def test_a_rank_reads_its_own_experts_and_all_else_once(ranks):
    """Derivation: of eight experts an ep = 4 rank reads two; values are as drawn on one rank."""
    for index, rank in enumerate(ranks):
        loading = rank["loading"]
        assert loading["wrong"] == []
        assert len(loading["read"]) == len(set(loading["read"]))
        of_experts = [name for name in loading["read"] if ".experts." in name]
        assert {int(name.split(".")[5]) for name in of_experts} == {2 * index, 2 * index + 1}
        assert len(of_experts) == 2 * 3 * MODEL.num_layers
        assert len(loading["read"]) - len(of_experts) == 13 * MODEL.num_layers + 3


def test_only_hybridep_holds_buffers(ranks):
    """Derivation: the all-to-all dispatcher keeps no buffer outside PyTorch."""
    for rank in ranks:
        for case, result in rank.items():
            if case in CASES:
                assert (result["held_bytes"] > 0) == ("hybridep" in case), case
