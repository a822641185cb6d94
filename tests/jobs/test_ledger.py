"""The ledger counts every storage once: rounding, views, sizes, addresses, and what is outside."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from jobs.meter.allocation import BLOCK, block_bytes
from jobs.meter.ledger import Ledger


@torch.library.custom_op("peakcast_test::sum_of_squares", mutates_args=())
def sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    """Two inner tensors as large as ``x``, and one output of a row."""
    return (x * x * 2).sum(0)


def rows(count: int) -> torch.Tensor:
    """Return a tensor of ``count`` blocks."""
    return torch.empty(count, BLOCK, dtype=torch.uint8)


def test_blocks_are_those_of_the_cuda_caching_allocator():
    """Reference: kMinBlockSize in the header that the installed torch ships."""
    header = Path(find_spec("torch").origin).parent / "include/c10/core/AllocatorConfig.h"
    assert f"kMinBlockSize = {BLOCK};" in header.read_text()
    assert [block_bytes(n) for n in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]


def test_storages_sum_to_their_nbytes():
    """Reference: nbytes of tensors made by hand, whole blocks each."""
    ledger = Ledger()
    with ledger.call() as call:
        kept = [rows(n) for n in (1, 2, 3, 40)]
        call.forward_done()
    assert call.result.retained_bytes == sum(t.untyped_storage().nbytes() for t in kept) == 46 * 512
    assert call.result.working_set_bytes == call.result.left_over_bytes == 46 * 512


def test_a_small_storage_takes_a_block():
    """Reference: the caching allocator's rule, one block at least."""
    ledger = Ledger()
    with ledger.call() as call:
        kept = [torch.zeros(1), torch.zeros(129)]
    assert call.result.left_over_bytes == 512 + 1024, kept


def test_views_and_in_place_results_are_their_base():
    """Reference: the law that memory is given to storages, not to tensors."""
    ledger = Ledger()
    with ledger.call() as call:
        base = rows(8)
        views = [base[1:3], base.t(), base.view(-1), *base.split(2), base.detach(), base.fill_(1)]
        torch.mul(base, 2, out=views[0].new_empty(0).set_(base))
    assert len(views) == 9
    assert call.result.working_set_bytes == 8 * 512


def test_a_base_lives_while_a_view_does():
    """Reference: reference counting; the 512-byte view keeps all eight blocks."""
    ledger = Ledger()
    with ledger.call() as call:
        view = rows(8)[:1]
        call.forward_done()
        del view
    assert call.result.retained_bytes == 8 * 512
    assert call.result.left_over_bytes == 0


def test_views_of_registered_tensors_are_no_allocations():
    """Reference: a parameter was there before the call."""
    ledger = Ledger()
    weight = rows(16)
    ledger.register("weight", weight, kind="parameter")
    with ledger.call() as call:
        weight[3:].t().add_(1)
    assert call.result.baseline_bytes == ledger.live_bytes == 16 * 512
    assert call.result.working_set_bytes == call.result.unregistered_bytes == 0


def test_resize_moves_the_bytes_and_not_the_count():
    """Reference: nbytes of the storage before and after resize_, which never shrinks it."""
    ledger = Ledger()
    with ledger.call() as call:
        tensor = rows(2)
        tensor.resize_(10, BLOCK)
        call.forward_done()
        tensor.resize_(1, BLOCK)
    assert tensor.untyped_storage().nbytes() == 10 * 512
    assert call.result.retained_bytes == call.result.working_set_bytes == 10 * 512
    assert call.result.left_over_bytes == 10 * 512
    assert [a.op for a in call.result.at_peak] == ["resize_"]


def test_a_storage_at_a_freed_address_is_a_new_one():
    """Reference: a loop that frees before it allocates holds one tensor at a time."""
    ledger = Ledger()
    addresses = []
    with ledger.call() as call:
        for count in range(1, 65):
            tensor = rows(count)
            addresses.append(tensor.untyped_storage()._cdata)
            del tensor
    assert len(set(addresses)) < len(addresses), "no address came again: the test shows nothing"
    assert call.result.working_set_bytes == 64 * 512
    assert [a.nbytes for a in call.result.allocations] == [n * 512 for n in range(1, 65)]
    assert call.result.left_over_bytes == 0


def test_what_dies_during_the_call_leaves_at_once():
    """Reference: y = x·2·3·4 by hand: two tensors at a time, whatever the length of the chain."""
    ledger = Ledger()
    x = rows(10)
    ledger.register("x", x)
    with ledger.call() as call:
        y = x * 2
        for _ in range(5):
            y = y * 3
    assert call.result.working_set_bytes == 2 * 10 * 512
    assert call.result.left_over_bytes == 10 * 512


def test_a_custom_op_is_one_op():
    """Reference: the operator's contract; its inner tensors (x·x and the double) are its own."""
    ledger = Ledger()
    x = torch.ones(64, 128)
    ledger.register("x", x)
    with ledger.call() as call:
        out = sum_of_squares(x)
    assert [(a.op, a.nbytes) for a in call.result.allocations] == [
        ("peakcast_test.sum_of_squares", out.untyped_storage().nbytes())
    ]


def test_what_is_made_with_modes_disabled_is_outside():
    """Reference: the rule for persistent communication buffers: met through a view, not counted."""
    ledger = Ledger()
    with ledger.call() as call:
        with _disable_current_modes():
            buffer = rows(100)
        view = buffer[:5]
        copy = view.clone()
    assert call.result.unregistered_bytes == 100 * 512
    assert call.result.working_set_bytes == copy.untyped_storage().nbytes()
    assert ledger.live_bytes == 5 * 512


def test_frees_between_calls_reach_the_next_baseline():
    """Reference: weights of 4 blocks stay, an input of 3 is dropped between the calls."""
    ledger = Ledger()
    weight, data = rows(4), rows(3)
    ledger.register("weight", weight, kind="parameter")
    ledger.register("data", data)
    with ledger.call() as first:
        pass
    del data
    with ledger.call() as second:
        pass
    assert first.result.baseline_bytes == 7 * 512
    assert second.result.baseline_bytes == 4 * 512


def test_registering_twice_counts_once():
    """Reference: tied parameters are one storage."""
    ledger = Ledger()
    weight = rows(4)
    ledger.register("embedding", weight, kind="parameter")
    ledger.register("head", weight.view(-1), kind="parameter")
    assert ledger.live_bytes == 4 * 512


def test_a_result_registered_after_its_call_is_no_longer_held_over():
    """Reference: what is resident is part of the baseline and of nothing else."""
    ledger = Ledger()
    with ledger.call():
        cache = rows(6)
    ledger.register("cache", cache, kind="buffer")
    with ledger.call() as call:
        pass
    assert call.result.held_over_bytes == 0
    assert call.result.baseline_bytes == 6 * 512


@pytest.mark.parametrize("tensor", [torch.ones(0), torch.ones(0, 8)])
def test_an_empty_tensor_takes_nothing_until_it_grows(tensor):
    """Reference: the allocator gives no block for zero bytes."""
    ledger = Ledger()
    with ledger.call() as call:
        empty = tensor.clone()
        call.forward_done()
        empty.resize_(128)
    assert call.result.retained_bytes == 0
    assert call.result.left_over_bytes == 512
