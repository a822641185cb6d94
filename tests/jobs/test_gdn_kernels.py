"""The operators of Gated DeltaNet layers against second implementations, and what they keep."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv1d, normalize, silu

from jobs.model.kernels.causal_conv import causal_conv
from jobs.model.kernels.delta_chunks import CHUNK
from jobs.model.kernels.gated_delta_rule import gated_delta_rule
from jobs.model.kernels.gated_norm import gated_norm, unit_norm
from jobs.model.kernels.head_exchange import merge_heads, order_rows, split_heads, zigzag_rows
from jobs.model.kernels.output_gate import output_gate

LENGTHS = [70, 3, 130, 64]
TOKENS, HEADS, KEYS, VALUES = sum(LENGTHS), 3, 8, 6
FP32 = (torch.float32, 2e-6)
BF16 = (torch.bfloat16, 2e-2)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rule_arguments(dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys, values, log-decay and write strength as a layer gives them."""
    q, k = (normalize(draw(TOKENS, HEADS, KEYS, seed=i), dim=-1) for i in (1, 2))
    v, beta = draw(TOKENS, HEADS, VALUES, seed=3), draw(TOKENS, HEADS, seed=4).sigmoid()
    decay = -draw(TOKENS, HEADS, seed=5).abs() * 0.1
    q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
    return [q, k, v, decay, beta]


def by_hand(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The recurrence, one position after another."""
    out = []
    for parts in zip(*(x.split(LENGTHS) for x in (q, k, v, decay, beta)), strict=True):
        state = q.new_zeros(HEADS, KEYS, VALUES)
        for query, key, value, log_decay, strength in zip(*parts, strict=True):
            state = state * log_decay.exp()[:, None, None]
            known = torch.einsum("hk,hkv->hv", key, state)
            change = strength[:, None] * (value - known)
            state = state + torch.einsum("hk,hv->hkv", key, change)
            out.append(torch.einsum("hk,hkv->hv", query, state) * KEYS**-0.5)
    return torch.stack(out)


def megatrons(*arguments: Tensor) -> Tensor:
    """Megatron's chunk rule, one request after another."""
    from megatron.core.ssm.gated_delta_net import torch_chunk_gated_delta_rule

    out = []
    for q, k, v, decay, beta in zip(*(x.split(LENGTHS) for x in arguments), strict=True):
        rows = [x.unsqueeze(0) for x in (q, k, v)]
        found, _ = torch_chunk_gated_delta_rule(*rows, g=decay[None], beta=beta[None])
        out.append(found[0])
    return torch.cat(out)


def with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output and every input's gradient for a drawn gradient of the output."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out, *torch.autograd.grad(out, inputs, draw(*out.shape, seed=9).to(out.dtype))]


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.double() - other.double()).abs().max() <= tolerance * other.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [FP32, BF16], ids=["fp32", "bf16"])
def test_the_rule_is_the_recurrence(dtype, tolerance):
    """Second implementation: the recurrence by hand in fp64; requests of 3 to 130 tokens."""
    arguments = rule_arguments(dtype)
    ours = with_gradients(lambda *x: gated_delta_rule(*x, LENGTHS)[0], arguments)
    assert [x.dtype for x in ours] == [dtype, *(x.dtype for x in arguments)]
    assert_close(ours, with_gradients(by_hand, [x.double() for x in arguments]), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [FP32, BF16], ids=["fp32", "bf16"])
def test_the_rule_is_megatrons(dtype, tolerance):
    """Second implementation: megatron-core's `torch_chunk_gated_delta_rule` and its autograd."""
    arguments = rule_arguments(dtype)
    ours = with_gradients(lambda *x: gated_delta_rule(*x, LENGTHS)[0], arguments)
    assert_close(ours, with_gradients(megatrons, arguments), tolerance)


def plain_conv(x: Tensor, weight: Tensor) -> Tensor:
    out = []
    for part in x.split(LENGTHS):
        padded = torch.cat((part.new_zeros(weight.shape[1] - 1, part.shape[1]), part))
        out.append(conv1d(padded.t()[None], weight.unsqueeze(1), groups=len(weight))[0].t())
    return silu(torch.cat(out))


def plain_gated_norm(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6) * silu(gate)


PLAIN: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "causal_conv": (
        lambda x, w: causal_conv(x, w, LENGTHS),
        plain_conv,
        [draw(TOKENS, 5), draw(5, 4, seed=1)],
    ),
    "unit_norm": (
        lambda x: unit_norm(x)[0],
        lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt(),
        [draw(5, 3, 8)],
    ),
    "gated_norm": (
        lambda x, g, w: gated_norm(x, g, w, 1e-6)[0],
        plain_gated_norm,
        [draw(5, 3, 8), draw(5, 3, 8, seed=1), draw(8, seed=2)],
    ),
    "output_gate": (
        output_gate,
        lambda x, g: x * g.sigmoid(),
        [draw(5, 3, 8), draw(5, 3, 8, seed=1)],
    ),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("dtype", "tolerance"), [FP32, BF16], ids=["fp32", "bf16"])
def test_values_and_gradients_are_those_of_plain_torch(name, dtype, tolerance):
    """Second implementation: the same function in torch's own operators, in fp64."""
    fused, plain, inputs = PLAIN[name]
    inputs = [x.to(dtype) for x in inputs]
    theirs = with_gradients(plain, [x.double() for x in inputs])
    assert_close(with_gradients(fused, inputs), theirs, tolerance)


@pytest.mark.parametrize("kernel", ["rule", "conv"])
def test_requests_never_mix(kernel):
    """Law: changing one request leaves the others' outputs as they were, to the bit."""
    inputs = rule_arguments(torch.float32) if kernel == "rule" else [draw(TOKENS, 5), draw(5, 4)]
    operator = gated_delta_rule if kernel == "rule" else causal_conv
    before = operator(*inputs, LENGTHS)
    values = inputs[2] if kernel == "rule" else inputs[0]
    values[: LENGTHS[0]] += 1
    after = operator(*inputs, LENGTHS)
    if kernel == "rule":
        before, after = before[0], after[0]
    assert torch.equal(before[LENGTHS[0] :], after[LENGTHS[0] :])
    assert not torch.equal(before[: LENGTHS[0]], after[: LENGTHS[0]])


def kept_by(function: Callable[[], object]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of what autograd saves while ``function`` runs."""
    kept: list[tuple[tuple[int, ...], torch.dtype]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return kept


def test_the_rule_keeps_what_the_fla_kernel_keeps():
    """Reference: `ChunkGatedDeltaRuleFunction` saves q, k, v, summed g (fp32), beta and A."""
    arguments = [x.requires_grad_() for x in rule_arguments(torch.bfloat16)]
    keys, values = (TOKENS, HEADS, KEYS), (TOKENS, HEADS, VALUES)
    low, scalars = torch.bfloat16, (TOKENS, HEADS)
    assert kept_by(lambda: gated_delta_rule(*arguments, LENGTHS)) == [
        (keys, low),
        (keys, low),
        (values, low),
        (scalars, torch.float32),
        (scalars, low),
        ((TOKENS, HEADS, CHUNK), low),
    ]


def fake_results(function: Callable[..., object], inputs: Sequence[Tensor]) -> object:
    with FakeTensorMode() as mode:
        return function(*[mode.from_tensor(x) for x in inputs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fake_outputs_are_the_real_ones(dtype):
    """Second implementation: the same operator with numbers; shapes, dtypes and strides agree."""
    rule = rule_arguments(dtype)
    out = gated_delta_rule(*rule, LENGTHS)
    backward = [out[0], *rule[:3], out[1], rule[4], out[2]]
    x, weight = draw(TOKENS, 5).to(dtype), draw(5, 4).to(dtype)
    norm = [draw(5, 3, 8).to(dtype), draw(5, 3, 8).to(dtype), draw(8).to(dtype)]
    ops = torch.ops.peakcast
    cases = [
        (lambda *a: ops.gated_delta_rule(*a, LENGTHS), rule),
        (lambda *a: ops.gated_delta_rule_backward(*a, LENGTHS), backward),
        (lambda *a: [ops.causal_conv(*a, LENGTHS)], [x, weight]),
        (lambda *a: ops.causal_conv_backward(*a, LENGTHS), [x, x, weight]),
        (lambda *a: ops.unit_norm(*a), norm[:1]),
        (lambda *a: [ops.unit_norm_backward(*a)], [norm[0], *unit_norm(norm[0])]),
        (lambda *a: ops.gated_norm(*a, 1e-6), norm),
        (
            lambda *a: ops.gated_norm_backward(*a),
            [norm[0], *norm, gated_norm(*norm, 1e-6)[1]],
        ),
        (lambda *a: [ops.split_heads(*a, [4, 6, 2], 2)], [draw(6, 12).to(dtype)]),
        (lambda *a: [ops.merge_heads(*a, [4, 6, 2], 2)], [draw(12, 6).to(dtype)]),
        (lambda *a: [ops.order_rows(*a, [4, 8], 2)], [draw(12, 3).to(dtype)]),
        (lambda *a: [ops.zigzag_rows(*a, [4, 8], 2)], [draw(12, 3).to(dtype)]),
        (lambda *a: [ops.output_gate(*a)], norm[:2]),
        (lambda *a: ops.output_gate_backward(*a), [norm[0], *norm[:2]]),
    ]
    for function, inputs in cases:
        for real, fake in zip(function(*inputs), fake_results(function, inputs), strict=True):
            assert (real.shape, real.dtype) == (fake.shape, fake.dtype)
            assert real.stride() == fake.stride()


def test_heads_and_rows_come_back():
    """Law: each data movement undoes its inverse, and its gradient is the inverse's value."""
    x, sections = draw(6, 12).requires_grad_(), [4, 6, 2]
    assert torch.equal(merge_heads(split_heads(x, sections, 2), sections, 2), x)
    rows = draw(2 * (2 + 4), 3).requires_grad_()
    lengths = [4, 8]
    assert torch.equal(zigzag_rows(order_rows(rows, lengths, 2), lengths, 2), rows)
    grad = draw(12, 3)
    (back,) = torch.autograd.grad(order_rows(rows, lengths, 2), rows, grad)
    assert torch.equal(back, zigzag_rows(grad, lengths, 2))
    wide = draw(12, 6)
    (back,) = torch.autograd.grad(split_heads(x, sections, 2), x, wide)
    assert torch.equal(back, merge_heads(wide, sections, 2))


def test_rows_in_order_are_those_of_the_layout():
    """Second implementation: `RequestLayout.positions`, which places each rank's tokens."""
    from jobs.layout import RequestLayout

    lengths = (12, 24, 6)
    ranks = [RequestLayout(lengths, 3, rank).positions() for rank in range(3)]
    ordered = order_rows(torch.cat(ranks).unsqueeze(1).float(), list(lengths), 3).squeeze(1)
    assert ordered.tolist() == [position for length in lengths for position in range(length)]
