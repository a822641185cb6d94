"""What only the cyclic collector frees is told apart from what is referenced."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jobs.meter.ledger import Ledger
from jobs.model.collect import collect_after_first_recompute

TOKENS, HIDDEN, FFN = 128, 64, 256
INNER = TOKENS * FFN * 4
"""Bytes of the inner activation."""


class Layer(nn.Module):
    """up, down; keeps its inner tensor as told: not at all, on itself, or in a cycle of its own."""

    def __init__(self, keep: str) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.keep = keep
        self.kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(x)
        if self.keep == "referenced":
            self.kept = inner.detach()
        if self.keep == "cycle":
            frame: dict[str, object] = {"inner": inner.detach()}
            frame["itself"] = frame  # as a dead call stack does that an exception's trace holds
        return self.down(inner)


@pytest.fixture
def _collector_off():
    with Ledger().call():  # what torch imports at the first operator leaves garbage of its own
        Layer("nothing")(torch.ones(1, HIDDEN)).sum().backward()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize(
    ("keep", "garbage", "held_over"),
    [("nothing", 0, 0), ("referenced", 0, INNER), ("cycle", INNER, 0)],
)
def test_a_planted_cycle_is_garbage_and_a_reference_is_not(keep, garbage, held_over):
    """Reference: planted; the second of two layers keeps its (tokens, ffn) fp32 activation."""
    model = nn.Sequential(Layer("nothing"), Layer(keep))
    x = torch.ones(TOKENS, HIDDEN)
    ledger = Ledger()
    ledger.attach(model)
    ledger.register("x", x)
    with ledger.call() as call:
        model(x).sum().backward()
    model.zero_grad(set_to_none=True)
    assert ledger.held_over_bytes == garbage + held_over
    found = ledger.collect_garbage()
    assert sum(a.nbytes for a in found) == garbage
    assert {(a.module, a.op) for a in found} == ({("1.up", "mm")} if garbage else set())
    assert ledger.held_over_bytes == held_over
    assert call.result.left_over_bytes >= garbage + held_over


class Checkpointed(nn.Module):
    """Layers run again in backward, each by the checkpoint that Megatron's recompute is made of."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True, preserve_rng_state=False)
        return x


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize(("collect", "layers_left"), [(False, 4), (True, 1)])
def test_one_collection_after_the_first_recompute_frees_what_came_before(collect, layers_left):
    """Reference: planted; two layers leave one activation in forward and one in recompute each.

    Collected after the first recompute, the last layer's, only what the first layer's leaves stays.
    """
    model = Checkpointed(Layer("cycle"), Layer("cycle"))
    x = torch.ones(TOKENS, HIDDEN, requires_grad=True)
    ledger = Ledger()
    ledger.attach(model)
    ledger.register("x", x)
    if collect:
        collect_after_first_recompute(model.layers)
    with ledger.call():
        model(x).sum().backward()
    model.zero_grad(set_to_none=True)
    garbage = sum(a.nbytes for a in ledger.collect_garbage())
    assert garbage == layers_left * INNER
