"""The ledger against other accounts of the same memory: torch's profiler, and a small simulator."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from jobs.meter.allocation import BLOCK
from jobs.meter.ledger import Ledger


class Block(nn.Module):
    """A residual MLP: the residual's two gradients are accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256, bias=False)
        self.down = nn.Linear(256, 64, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def step(blocks, x, reentrant):
    """Forward and backward of a stack of blocks; gradients are dropped at the end."""
    y = x
    for block in blocks:
        if reentrant is None:
            y = block(y)
        else:
            y = checkpoint(block, y, use_reentrant=reentrant, preserve_rng_state=False)
    (y * y).sum().backward()
    for p in (x, *blocks.parameters()):
        p.grad = None


def profiled_peak(run) -> int:
    """Highest live bytes that the CPU allocator handed out during ``run``."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_working_set_is_the_profilers_peak(reentrant):
    """Reference: torch.profiler's allocator events of the same step, with and without the ledger.

    Sizes are whole blocks but for three scalars. That the profiler sees the same peak either way
    shows that following storages does not keep any of them alive or change what autograd reuses.
    """
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(3))
    x = torch.randn(128, 64, requires_grad=True)
    step(blocks, x, reentrant)  # one-time allocations of the math library
    alone = profiled_peak(lambda: step(blocks, x, reentrant))
    ledger = Ledger()
    ledger.attach(blocks)
    ledger.register("x", x)

    def followed():
        with ledger.call():
            step(blocks, x, reentrant)

    assert profiled_peak(followed) == alone
    with ledger.call() as call:
        step(blocks, x, reentrant)
    assert call.result.unregistered_bytes == 0
    assert 0 <= call.result.working_set_bytes - alone <= 3 * BLOCK


SLOTS = st.integers(0, 5)
ACTIONS = st.one_of(
    st.tuples(st.just("alloc"), SLOTS, st.integers(0, 5 * BLOCK)),
    st.tuples(st.just("view"), SLOTS, SLOTS),
    st.tuples(st.just("resize"), SLOTS, st.integers(0, 5 * BLOCK)),
    st.tuples(st.just("drop"), SLOTS, st.just(0)),
    st.tuples(st.just("forward_done"), st.just(0), st.just(0)),
)
PROGRAMS = st.lists(st.lists(ACTIONS, max_size=40), min_size=1, max_size=3)


class Simulator:
    """Slots that name storages; a storage is a list [nbytes, call] and dies with its last name."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def bytes_of(self, wanted) -> int:
        """Blocks of the distinct storages named by a slot whose call is ``wanted``."""
        storages = {id(s): s for s in self.slots.values() if wanted(s[1])}
        return sum((s[0] + BLOCK - 1) // BLOCK * BLOCK for s in storages.values())

    def run(self, index, actions):
        """Play one call; return its figures, each looked up afresh after every action."""
        held = self.bytes_of(lambda call: True)
        own = peak = net = 0
        retained = None
        for kind, slot, value in actions:
            if kind == "alloc":
                self.slots.pop(slot, None)
                self.slots[slot] = [value, index]
            elif kind == "view" and value in self.slots:
                self.slots[slot] = self.slots[value]
            elif kind == "drop":
                self.slots.pop(slot, None)
            elif kind == "resize" and slot in self.slots and value > self.slots[slot][0]:
                self.slots[slot][:] = [value, index]  # the call that grows a storage owns it
            own = self.bytes_of(lambda call: call == index)
            peak = max(peak, own)
            net = max(net, self.bytes_of(lambda call: True) - held)
            if kind == "forward_done":
                retained = max(own, retained or 0)
        return peak, net, retained, held, own


def play(ledger, index, actions, slots):
    """Do the same with tensors."""
    with ledger.call() as call:
        for kind, slot, value in actions:
            if kind == "alloc":
                slots.pop(slot, None)
                slots[slot] = torch.empty(value, dtype=torch.uint8)
            elif kind == "view" and value in slots:
                slots[slot] = slots[value].view(-1)
            elif kind == "drop":
                slots.pop(slot, None)
            elif kind == "resize" and slot in slots:
                slots[slot].resize_(value)
            elif kind == "forward_done":
                call.forward_done()
    result = call.result
    assert sum(a.nbytes for a in result.at_peak) == result.working_set_bytes
    assert sum(a.nbytes for a in result.live_at(result.last_number)) == result.left_over_bytes
    return (
        result.working_set_bytes,
        result.peak_bytes,
        result.retained_bytes,
        result.held_over_bytes,
        result.left_over_bytes,
    )


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_random_programs_match_a_simulator(program):
    """Reference: a second account that recounts all named storages after every action."""
    ledger, slots, simulator = Ledger(), {}, Simulator()
    for index, actions in enumerate(program):
        assert play(ledger, index, actions, slots) == simulator.run(index, actions)
