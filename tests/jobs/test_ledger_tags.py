"""Each allocation knows its module, operator and phase, in forward, recompute and backward."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jobs.meter.ledger import Ledger


class Cube(torch.autograd.Function):
    """x³ with a formula of its own, two operators each way."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return (3 * x * x) * gradient


class Cubed(nn.Module):
    def forward(self, x):
        return Cube.apply(x)


class Layer(nn.Module):
    """A frozen linear, an adapted one, a custom Function; exp at the layer's own level."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16, bias=False).requires_grad_(False)
        self.trained = nn.Linear(16, 16, bias=False)
        self.cubed = Cubed()

    def forward(self, x):
        return self.cubed(self.base(x) + self.trained(x)).exp()


class Stack(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def follow(model):
    """Run one call; return its allocations."""
    x = torch.ones(8, 16, requires_grad=True)
    ledger = Ledger()
    ledger.attach(model)
    ledger.register("x", x)
    with ledger.call() as call:
        y = model(x)
        call.forward_done()
        y.backward(torch.ones(8, 16))
    return call.result.allocations


def of(allocations, phase, layer=0):
    """Count (module below the layer, op) of one layer in one phase."""
    prefix = f"layers.{layer}"
    return Counter(
        (a.module.removeprefix(prefix).lstrip("."), a.op)
        for a in allocations
        if a.phase == phase and a.module.startswith(prefix)
    )


FORWARD = Counter(
    {
        ("base", "mm"): 1,
        ("trained", "mm"): 1,
        ("", "add.Tensor"): 1,
        ("cubed", "mul.Tensor"): 2,
        ("", "exp"): 1,
    }
)
"""What Layer.forward allocates, read from its source."""


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_forward_is_tagged_by_module(reentrant):
    """Reference: the source of Layer.forward, operator by operator."""
    allocations = follow(Stack(reentrant))
    assert of(allocations, "forward", 0) == of(allocations, "forward", 1) == FORWARD


@pytest.mark.parametrize("reentrant", [True, False])
def test_recompute_repeats_the_forward(reentrant):
    """Reference: checkpointing runs the same source again; non-reentrant ones may stop early."""
    allocations = follow(Stack(reentrant))
    for layer in (0, 1):
        assert not FORWARD - of(allocations, "forward", layer)
        again = of(allocations, "recompute", layer)
        assert not again - FORWARD, "recompute made what forward did not"
        assert reentrant is False or again == FORWARD


def test_without_checkpoints_there_is_no_recompute():
    """Reference: nothing runs twice."""
    assert not [a for a in follow(Stack(None)) if a.phase == "recompute"]


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_backward_is_tagged_by_the_module_that_made_the_node(reentrant):
    """Reference: the derivative of Layer, by hand.

    exp: one product. Cube: 3x, ·x, ·gradient. Each linear gives its input's gradient; only the
    trained one its weight's, which becomes the parameter's ``.grad``. The two input gradients are
    added where the second one is made, which is in either linear.
    """
    allocations = follow(Stack(reentrant))
    for layer in (0, 1):
        seen = of(allocations, "backward", layer)
        assert seen.pop(("", "mul.Tensor")) == 1
        assert seen.pop(("cubed", "mul.Tensor")) == 3
        assert seen.pop(("base", "mm")) == 1
        assert seen.pop(("trained", "mm")) == 2
        assert [op for (_, op), n in seen.items() if n] in ([], ["add.Tensor"])
    assert {a.gradient_of for a in allocations if a.gradient_of} == {
        "layers.0.trained.weight",
        "layers.1.trained.weight",
    }


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_backward_knows_its_node(reentrant):
    """Reference: names that autograd gives to the nodes of mm and of the custom Function."""
    allocations = follow(Stack(reentrant))
    backward = [a for a in allocations if a.phase == "backward" and a.module]
    assert {a.node for a in backward if a.module.endswith("cubed")} == {"CubeBackward"}
    assert {a.node for a in backward if a.module.endswith("trained")} == {"MmBackward0"}
    assert not any(a.node for a in allocations if a.phase == "forward")


def test_a_gradient_that_cannot_be_stolen_is_the_parameters():
    """Reference: AccumulateGrad copies a gradient that is a broadcast (of sum) into memory."""

    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Module()
            self.inner.shift = nn.Parameter(torch.zeros(16, 16))

        def forward(self):
            return self.inner.shift.sum()

    model = Bias()
    ledger = Ledger()
    ledger.attach(model)
    with ledger.call() as call:
        model().backward()
    (gradient,) = [a for a in call.result.allocations if a.gradient_of]
    assert (gradient.node, gradient.module, gradient.gradient_of) == (
        "AccumulateGrad",
        "inner",
        "inner.shift",
    )


def test_a_second_forward_after_a_backward_is_forward_again():
    """Reference: a call that is split runs forward and backward once a child."""
    model = Stack(True)
    ledger = Ledger()
    ledger.attach(model)
    with ledger.call() as call:
        for _ in range(2):
            model(torch.ones(8, 16, requires_grad=True)).sum().backward()
            call.forward_done()
    assert of(call.result.allocations, "forward") == FORWARD + FORWARD
    assert of(call.result.allocations, "recompute") == FORWARD + FORWARD


@pytest.mark.parametrize("reentrant", [True, False])
def test_recompute_of_a_plain_function_is_told_by_its_gradient_mode(reentrant):
    """Reference: sine needs x·2 in backward, so any checkpoint of sin(x·2)·3 makes it again."""
    x = torch.ones(8, 16, requires_grad=True)
    ledger = Ledger()
    ledger.register("x", x)
    with ledger.call() as call:
        y = checkpoint(lambda t: (t * 2).sin() * 3, x, use_reentrant=reentrant)
        call.forward_done()
        y.backward(torch.ones(8, 16))
    again = [a.op for a in call.result.allocations if a.phase == "recompute" and a.nbytes == 512]
    assert again[0] == "mul.Tensor"
    backward = [a.op for a in call.result.allocations if a.phase == "backward"]
    assert "cos" in backward


def test_what_starts_backward_is_not_forward():
    """Reference: autograd makes the loss's own gradient (ones) before any node runs."""
    x = torch.ones(8, 16, requires_grad=True)
    with Ledger().call() as call:
        loss = x.exp().sum()
        call.forward_done()
        loss.backward()
    assert [a.phase for a in call.result.allocations if a.op == "ones_like"] == ["backward"]
    assert {a.phase for a in call.result.allocations if a.op in ("exp", "sum")} == {"forward"}
