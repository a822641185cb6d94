"""The HybridEP reference: what it computes, what it holds, and how it grows."""

import subprocess
import sys
from typing import Any

import pytest

from jobs.hybridep import buffer_bytes, capacity_for

QWEN = {"hidden": 2048, "experts": 256, "itemsize": 2}


@pytest.mark.parametrize(
    ("tokens", "ranks", "capacity", "held"),
    [
        (194_753, 2, 194_816, 2_119_598_080),
        (5_120, 4, 5_120, 111_411_200),
        (1_000, 2, 1_024, 11_141_120),
        (98_304, 4, 98_304, 2_139_095_040),
        (779_012, 2, 779_072, 8_476_303_360),
    ],
)
def test_published_sizes(tokens, ranks, capacity, held):
    """Published figures: ART's unit tests and its 2.12 GB at CP2/EP2, for Qwen3.6-35B-A3B."""
    assert capacity_for(tokens, ranks) == capacity
    assert buffer_bytes(tokens, ranks, **QWEN) == held


def test_the_smallest_buffer():
    """Published rule: at least 512 tokens per rank, then a multiple of 64."""
    assert capacity_for(1, 2) == capacity_for(512, 2) == 512
    assert capacity_for(513, 2) == 576


@pytest.fixture(scope="module")
def ranks(run_ranks) -> list[dict[str, Any]]:
    return run_ranks("hybridep_worker.py", 2)


@pytest.mark.parametrize("call", ["uneven", "none on rank 1", "larger", "small again"])
def test_dispatch_and_combine_compute_their_definition(ranks, call):
    """Derivation: rows by expert, rank, token; combine sums a token's copies; probs come back."""
    for rank in ranks:
        assert rank[call]["exact"] == [True] * 5
        assert rank[call]["sum"]


def test_held_bytes_are_the_formula_and_the_truth(ranks):
    """Second implementation: the sum of the buffers' own nbytes, and `buffer_bytes`.

    The constructor makes buffers for 16-bit tokens as DeepEP's does; the first fp32 token widens
    them.
    """
    sizes = {"ranks": 2, "hidden": 256, "experts": 8}
    for rank in ranks:
        assert rank["constructed"]["held_bytes"] == buffer_bytes(5, itemsize=2, **sizes)
        for call, tokens in {"uneven": 9, "none on rank 1": 70, "larger": 700}.items():
            held = rank[call]["held_bytes"]
            assert held == rank[call]["summed"] == buffer_bytes(tokens, itemsize=4, **sizes)


def test_all_ranks_grow_with_the_busiest_and_never_shrink(ranks):
    """Published rule (DeepEP's update): the group's largest count decides; buffers stay."""
    assert [rank["uneven"]["capacity"] for rank in ranks] == [512, 512]
    assert [rank["larger"]["capacity"] for rank in ranks] == [704, 704]
    assert [rank["small again"]["capacity"] for rank in ranks] == [704, 704]


def test_the_handle_has_deepeps_shapes(ranks):
    """Published shapes of HybridEP's metadata at one domain: n = 9 tokens, R = 2, four experts."""
    for rank in ranks:
        assert rank["uneven"]["handle"] == {
            "sparse_to_dense": [[9, 2], "torch.int32"],
            "rdma_to_attention": [[16], "torch.bool"],
            "local_expert_map": [[18, 4], "torch.bool"],
            "chunk_layout": [[1, 2], "torch.int32"],
            "dense_to_expert": [[18, 4], "torch.int32"],
            "tokens_per_expert": [[4], "torch.int64"],
        }


def test_a_dispatch_mode_sees_what_deepep_returns_and_not_its_buffers(ranks):
    """Derivation: outputs, handle and the transient global routing map are PyTorch's memory."""
    for rank in ranks:
        for call in ("uneven", "larger"):
            seen = rank[call]
            most = 9 if call == "uneven" else 700
            wanted = [
                [[most * 2, 8], "torch.uint8"],
                *seen["handle"].values(),
                [[seen["rows"], 256], "torch.float32"],
                [[seen["rows"]], "torch.float32"],
            ]
            assert sorted(map(str, seen["made"])) == sorted(map(str, wanted))
            assert not seen["buffers_seen"]


def test_installing_after_megatron_is_refused():
    """Derivation: Megatron looks for deep_ep when it is imported, and never again."""
    code = "import megatron.core, jobs.backend.cpu as cpu; cpu.install()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "import jobs.model (or call install) first" in ran.stderr
