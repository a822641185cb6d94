"""The packed causal attention operator against masked attention over the whole sequence."""

import pytest
import torch
from torch import Tensor

from jobs.layout import RequestLayout
from jobs.model.kernels.causal_attention import causal_attention
from planner.errors import ConfigError

HEADS, GROUPS, CHANNELS = 4, 2, 8
SCALE = 0.3


def draw(tokens: int, heads: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, 1, heads, CHANNELS, generator=generator).requires_grad_()


def masked(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Softmax over a block-causal S x S mask, in fp64."""
    request = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    total = len(request)
    allowed = (request[:, None] == request) & torch.ones(total, total).tril().bool()
    q, k, v = (x.double().squeeze(1).transpose(0, 1) for x in (query, key, value))
    k, v = (x.repeat_interleave(HEADS // GROUPS, 0) for x in (k, v))
    scores = (q @ k.transpose(1, 2) * SCALE).masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def ranks_of(lengths: tuple[int, ...], degree: int) -> list[Tensor]:
    """The rows of the packed sequence that each context-parallel rank holds, in its order."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [
        torch.cat(
            [
                RequestLayout((length,), degree, rank).positions() + start
                for start, length in zip(starts, lengths, strict=True)
            ]
        )
        for rank in range(degree)
    ]


@pytest.mark.parametrize(
    ("lengths", "degree"),
    [((9,), 1), ((7, 1, 16), 1), ((8, 16, 4), 2), ((16, 8), 4)],
    ids=["one request", "three requests", "cp2", "cp4"],
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"]
)
def test_values_and_gradients_are_those_of_masked_attention(lengths, degree, dtype, tolerance):
    """Second implementation: softmax attention under a block-causal mask, by autograd in fp64."""
    total = sum(lengths)
    inputs = [draw(total, heads, seed) for seed, heads in enumerate((HEADS, GROUPS, GROUPS))]
    inputs = [x.detach().to(dtype).requires_grad_() for x in inputs]
    reference = masked(*inputs, lengths)
    grad = draw(total, HEADS, 9).detach().to(dtype).flatten(2)
    wanted = torch.autograd.grad(reference, inputs, grad.double().squeeze(1))
    order = torch.cat(ranks_of(lengths, degree))
    out = torch.empty(total, HEADS * CHANNELS, dtype=torch.float64)
    totals = [torch.zeros(x.shape, dtype=torch.float64) for x in inputs]
    for rank, rows in enumerate(ranks_of(lengths, degree)):
        query = inputs[0][rows].detach().requires_grad_()
        key, value = (x[order].detach().requires_grad_() for x in inputs[1:])
        part, _ = causal_attention(query, key, value, list(lengths), degree, rank, SCALE)
        out[rows] = part.detach().double().squeeze(1)
        grads = torch.autograd.grad(part, (query, key, value), grad[rows])
        for sums, target, got in zip(totals, (rows, order, order), grads, strict=True):
            sums.index_add_(0, target, got.double())
    assert (out - reference).abs().max() <= tolerance * reference.abs().max()
    for got, want in zip(totals, wanted, strict=True):
        assert (got - want.double()).abs().max() <= 2 * tolerance * want.abs().max()


def test_what_backward_keeps_is_what_flash_attention_keeps():
    """Published signature (flash_attn_interface.py): q, k, v, out, log-sum-exp; no S x S mask."""
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    query, key, value = draw(12, HEADS, 0), draw(12, GROUPS, 1), draw(12, GROUPS, 2)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        causal_attention(query, key, value, [8, 4], 1, 0, SCALE)
    assert kept == [
        (12, 1, HEADS, CHANNELS),
        (12, 1, GROUPS, CHANNELS),
        (12, 1, GROUPS, CHANNELS),
        (12, 1, HEADS * CHANNELS),
        (HEADS, 12),
    ]


def test_a_request_that_does_not_divide_into_chunks_is_refused():
    """Derivation: at cp2 a request is four chunks."""
    with pytest.raises(ConfigError, match=r"request 1 has 6 tokens.*2·2 chunks"):
        RequestLayout((8, 6), 2, 0)
