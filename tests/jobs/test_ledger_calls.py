"""What a call says of itself: peaks, retained, held over, left over; and calls that go wrong."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as module_registry
from torch.utils.checkpoint import checkpoint

from jobs.meter.allocation import BLOCK
from jobs.meter.call import LedgerError
from jobs.meter.ledger import Ledger
from jobs.meter.timeline import timeline

TOKENS, HIDDEN, FFN, LAYERS = 128, 64, 256, 3
H, F = (
    TOKENS * HIDDEN * 4,
    TOKENS * FFN * 4,
)  # bytes of an (tokens, hidden) and (tokens, ffn) tensor


def rows(count: int) -> torch.Tensor:
    """Return a tensor of ``count`` blocks."""
    return torch.empty(count, BLOCK, dtype=torch.uint8)


class Block(nn.Module):
    """up, silu, down: an MLP without a residual."""

    def __init__(self, keep: list | None = None) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.keep = keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(x)
        if self.keep is not None:
            self.keep.append(inner.detach())
        return self.down(torch.nn.functional.silu(inner))


class Checkpointed(nn.Module):
    """A stack of blocks, each a reentrant checkpoint, its weights frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS)).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True, preserve_rng_state=False)
        return x


def run_checkpointed():
    """One call of the frozen stack; the gradient of its output is registered beforehand."""
    model, x, seed = Checkpointed(), torch.empty(TOKENS, HIDDEN), torch.empty(TOKENS, HIDDEN)
    x.requires_grad_()
    ledger = Ledger()
    ledger.attach(model)
    ledger.register("x", x)
    ledger.register("seed", seed)
    with ledger.call() as call:
        y = model(x)
        call.forward_done()
        y.backward(seed)
        del y
    return call.result


def test_peak_of_a_checkpointed_mlp():
    """Reference: derived by hand.

    The last layer's backward comes first and is highest. It holds LAYERS - 1 boundaries and the
    stack's output; recompute adds up's output (silu saves it) and the layer's output again, frozen
    weights save nothing; silu's backward needs the gradient of its output and makes that of its
    input: (LAYERS + 1)·H + 3·F. Every earlier layer trades a boundary for an incoming gradient.
    """
    result = run_checkpointed()
    assert result.working_set_bytes == (LAYERS + 1) * H + 3 * F
    assert result.peak_at == {
        "phase": "backward",
        "module": f"layers.{LAYERS - 1}",
        "op": "silu_backward",
    }
    assert sum(a.nbytes for a in result.at_peak) == result.working_set_bytes
    assert result.retained_bytes == LAYERS * H
    assert result.left_over_bytes == H  # x.grad


def test_fake_tensors_give_the_same_ledger():
    """Reference: the same program on real tensors."""
    real = run_checkpointed()
    with FakeTensorMode():
        fake = run_checkpointed()
    for name in ("working_set_bytes", "peak_bytes", "retained_bytes", "left_over_bytes", "peak_at"):
        assert getattr(fake, name) == getattr(real, name)
    assert [a.label() for a in fake.at_peak] == [a.label() for a in real.at_peak]


def test_gradients_of_parameters_belong_to_the_call():
    """Reference: three (FFN, HIDDEN) and (HIDDEN, FFN) fp32 weights, a gradient each."""
    model, x = Checkpointed().requires_grad_(True), torch.ones(TOKENS, HIDDEN)
    x.requires_grad_()
    ledger = Ledger()
    ledger.attach(model)
    with ledger.call() as call:
        model(x).sum().backward()
    gradients = {
        a.gradient_of: a.nbytes
        for a in call.result.live_at(call.result.last_number)
        if a.gradient_of
    }
    assert gradients == {name: p.nbytes for name, p in model.named_parameters()}
    assert call.result.left_over_bytes == sum(gradients.values()) + x.grad.nbytes


def test_held_over_and_released_in_mid_call():
    """Reference: call 0 keeps 10 blocks, call 1 frees them, then allocates 30: net 20, own 30."""
    ledger = Ledger()
    ledger.register("weight", weight := rows(5), kind="parameter")
    with ledger.call() as cold:
        kept = rows(10)
        made = rows(30)
        del made
    assert ledger.held_over_bytes == 10 * 512
    with ledger.call() as warm:
        del kept
        made = rows(30)
        del made
    assert cold.result.held_over_bytes == 0
    assert cold.result.left_over_bytes == warm.result.held_over_bytes == 10 * 512
    assert ledger.held_over_bytes == 0
    assert [a.op for a in warm.result.held_over] == ["empty.memory_format"]
    assert warm.result.baseline_bytes == cold.result.baseline_bytes + 10 * 512 == 15 * 512
    assert warm.result.working_set_bytes == 30 * 512
    assert warm.result.peak_bytes == 20 * 512
    assert warm.result.left_over_bytes == 0
    assert ledger.live_bytes == weight.nbytes


def test_a_planted_leak_grows_call_by_call():
    """Reference: a block that keeps its inner tensor keeps F bytes more after each call."""
    model = Block(keep=[])
    x = torch.ones(TOKENS, HIDDEN)
    ledger = Ledger()
    ledger.attach(model)
    ledger.register("x", x)
    held = []
    for _ in range(3):
        with ledger.call() as call:
            model(x)
            call.forward_done()
        held.append(call.result.held_over_bytes)
        assert call.result.left_over_bytes == F
    assert held == [0, F, 2 * F]
    assert {(a.module, a.op) for a in call.result.held_over} == {("up", "mm")}


def test_retained_is_the_highest_of_several_forwards():
    """Reference: three children hold 2, 9 and 4 blocks when their forwards end."""
    ledger = Ledger()
    with ledger.call() as call:
        for count in (2, 9, 4):
            kept = rows(count)
            call.forward_done()
            del kept
    assert call.result.retained_bytes == 9 * 512
    assert sum(a.nbytes for a in call.result.live_at(call.result.retained_number)) == 9 * 512


def test_no_forward_done_means_no_retained_figure():
    """Reference: nothing can be said of a moment that did not come."""
    with Ledger().call() as call:
        rows(1)
    assert call.result.retained_bytes is None


def test_the_state_at_any_allocation_can_be_asked_for():
    """Reference: a running sum kept by hand, checked at every allocation."""
    ledger = Ledger()
    with ledger.call() as call:
        a = rows(1)
        b = rows(2)
        del a
        c = rows(4)
        del b, c
        d = rows(8)
    live = [sum(x.nbytes for x in call.result.live_at(a.number)) for a in call.result.allocations]
    assert [n // 512 for n in live] == [1, 3, 6, 8], d
    assert [n // 512 for _, n in call.result.live_bytes()] == [1, 3, 6, 8]


@pytest.mark.parametrize("points", [1, 2, 3, 7, 96])
def test_a_timeline_of_few_points_still_shows_the_peak(points):
    """Reference: the working set is the highest live sum, whatever the number of points."""
    result = run_checkpointed()
    seen = timeline(result, points)
    assert len(seen) == min(points, len(result.allocations))
    assert max(live for live, _ in seen) == result.working_set_bytes
    phases = [place.split()[0] for _, place in timeline(result, 10**6)]
    assert phases == [a.phase for a in result.allocations]


class PlantedError(Exception):
    """Planted."""


class Faulty(nn.Module):
    """Raises when told to, deep inside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.left = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(x)
        if self.left == 0:
            raise PlantedError
        self.left -= 1
        return y


@pytest.mark.parametrize("passes", [0, 1], ids=["in forward", "in recompute"])
def test_an_exception_leaves_the_ledger_usable(passes):
    """Reference: the same call on a fresh ledger; global hook tables empty as before."""
    model, x = Faulty(), torch.ones(TOKENS, HIDDEN, requires_grad=True)

    def run(ledger, left):
        model.left = left
        with ledger.call() as call:
            y = checkpoint(model, x, use_reentrant=True, preserve_rng_state=False)
            call.forward_done()
            y.sum().backward()
            del y
        model.zero_grad()
        x.grad = None
        return call.result

    fresh, shaken = Ledger(), Ledger()
    for ledger in (fresh, shaken):
        ledger.attach(model)
        ledger.register("x", x)
    with pytest.raises(PlantedError):
        run(shaken, passes)
    model.zero_grad()
    x.grad = None
    assert not module_registry._global_forward_hooks
    assert not module_registry._global_forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    want, got = run(fresh, -1), run(shaken, -1)
    assert got.index == 1
    assert got.held_over_bytes == 0
    assert got.working_set_bytes == want.working_set_bytes
    assert [a.label() for a in got.at_peak] == [a.label() for a in want.at_peak]


def test_misuse_is_named():
    """Reference: the documented errors."""
    ledger = Ledger()
    with ledger.call() as call:
        with pytest.raises(LedgerError, match="call 0 still runs"):
            _ = call.result
        with pytest.raises(LedgerError, match="call 0 is still being followed"), ledger.call():
            pass
    with pytest.raises(LedgerError, match="call 0 is over"):
        call.forward_done()
