"""Each fused operator against plain torch operators, and what a dispatch mode sees of it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.model.head import Head
from jobs.model.kernels.grouped_matmul import grouped_matmul
from jobs.model.kernels.mixed_gemm import general_gemm
from jobs.model.kernels.permutation import (
    fused_permute_with_probs,
    fused_sort_chunks_by_index_with_probs,
    fused_unpermute,
)
from jobs.model.kernels.rms_norm import rms_norm
from jobs.model.kernels.swiglu import swiglu, weighted_swiglu
from jobs.model.kernels.target_log_probs import NO_TARGET, target_log_probs

COUNTS = [3, 0, 5, 4]
ROWS = sum(COUNTS)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def plain_grouped(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([part @ w for part, w in zip(x.split(COUNTS), weight, strict=True)])


def plain_swiglu(h: Tensor) -> Tensor:
    gate, up = h.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "rms_norm": (lambda x, w: rms_norm(x, w, 1e-6)[0], plain_norm, [draw(5, 1, 8), draw(8)]),
    "grouped_matmul": (
        lambda x, w: grouped_matmul(x, w, COUNTS),
        plain_grouped,
        [draw(ROWS, 6), draw(4, 6, 7)],
    ),
    "swiglu": (swiglu, plain_swiglu, [draw(5, 1, 12)]),
    "weighted_swiglu": (
        weighted_swiglu,
        lambda h, p: plain_swiglu(h) * p[:, None],
        [draw(ROWS, 12), draw(ROWS)],
    ),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"]
)
def test_values_and_gradients_are_those_of_plain_torch(name, dtype, tolerance):
    """Second implementation: the same function in torch's own operators, in fp64."""
    fused, plain, inputs = KERNELS[name]
    ours = [x.detach().to(dtype).requires_grad_() for x in inputs]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    out, reference = fused(*ours), plain(*theirs)
    grad = draw(*out.shape).detach().to(dtype)
    gradients = torch.autograd.grad(out, ours, grad)
    references = torch.autograd.grad(reference, theirs, grad.double())
    for mine, other in zip((out, *gradients), (reference, *references), strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - other).abs().max() <= tolerance * other.abs().max()


class Seen(TorchDispatchMode):
    """The operators that reach the dispatcher, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.names.append(func.name().split("::")[1].split(".")[0])
        return out


@pytest.mark.parametrize("name", KERNELS)
def test_a_dispatch_mode_sees_one_operator_forward_and_none_but_ours_backward(name):
    """Claim of the kernels' package: scratch inside a fused kernel is not an allocation."""
    fused, _, inputs = KERNELS[name]
    inputs = [x.detach().requires_grad_() for x in inputs]
    with Seen() as seen:
        out = fused(*inputs)
    assert seen.names == [name]
    grad = torch.ones_like(out)
    with Seen() as seen:
        torch.autograd.grad(out, inputs, grad)
    backward = {
        "grouped_matmul": ["grouped_matmul", "grouped_weight_gradient"],
    }.get(name, [f"{name}_backward"])
    assert [x for x in seen.names if x != "detach"] == backward


def test_a_frozen_weight_keeps_no_input():
    """Derivation: the input's gradient is g·wᵀ, so that only w is needed."""
    x, weight = draw(ROWS, 6), draw(4, 6, 7).detach()
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        grouped_matmul(x, weight, COUNTS)
    assert kept == [(4, 6, 7)]


def test_mixed_gemm_layouts():
    """Megatron's own fallback in RouterGatingLinearFunction: mm of operands cast to fp32."""
    inputs, weight = draw(5, 6, dtype=torch.bfloat16), draw(3, 6, dtype=torch.bfloat16)
    grad = draw(5, 3)
    out = general_gemm(weight, inputs, torch.float32, layout="TN")[0]
    assert torch.equal(out, inputs.float() @ weight.float().t())
    back = general_gemm(weight.float(), grad, torch.float32, layout="NN", grad=True)[0]
    assert torch.equal(back, grad @ weight.float())
    of_weight = general_gemm(inputs.float(), grad, torch.float32, layout="NT", grad=True)[0]
    assert torch.equal(of_weight, grad.t() @ inputs.float())


def routing(tokens: int = 6, experts: int = 5, top_k: int = 2) -> Tensor:
    scores = draw(tokens, experts).detach()
    picked = scores.topk(top_k, 1).indices
    return torch.zeros(tokens, experts, dtype=torch.bool).scatter_(1, picked, True)


def test_permutation_and_its_gradients():
    """Second implementation: Megatron's unfused permute and unpermute (moe_utils)."""
    from megatron.core.transformer.moe.moe_utils import permute, unpermute

    routing_map = routing()
    results = []
    for fused in (True, False):
        tokens, probs = draw(6, 4), draw(6, 5)
        if fused:
            rows, row_probs, back = fused_permute_with_probs(tokens, probs, routing_map, 12)
            out = fused_unpermute(rows * row_probs[:, None], back, restore_shape=tokens.shape)
        else:
            rows, row_probs, back = permute(tokens, routing_map, probs, num_out_tokens=12)
            out = unpermute(rows * row_probs[:, None], back, tokens.shape)
        grads = torch.autograd.grad(out, (tokens, probs), draw(6, 4).detach())
        results.append((rows, row_probs, out, *grads))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_the_row_id_map_is_transformer_engines():
    """Layout of Transformer Engine's row_id_map: rows, experts, number; (T, 2E + 1) int32."""
    routing_map = torch.tensor([[True, False, True], [False, True, True]])
    _, _, row_id_map = fused_permute_with_probs(draw(2, 4), draw(2, 3), routing_map, 4)
    assert row_id_map.dtype == torch.int32
    assert row_id_map.tolist() == [[0, 2, -1, 0, 2, -1, 2], [1, 3, -1, 1, 2, -1, 2]]


def test_permute_refuses_another_number_of_rows():
    """Derivation: a dropless router routes exactly T x top-k pairs."""
    with pytest.raises(ValueError, match="told of 11 routed rows; the map holds 12"):
        fused_permute_with_probs(draw(6, 4), draw(6, 5), routing(), 11)


def test_sorting_chunks_and_its_gradients():
    """Second implementation: Megatron's unfused sort_chunks_by_idxs (split and cat)."""
    from megatron.core.transformer.moe.moe_utils import sort_chunks_by_idxs

    splits, order = torch.tensor([2, 0, 3, 1]), torch.tensor([2, 0, 3, 1])
    results = []
    for fused in (True, False):
        rows, probs = draw(6, 4), draw(6)
        if fused:
            out = fused_sort_chunks_by_index_with_probs(rows, probs, splits, order)
        else:
            out = sort_chunks_by_idxs(rows, splits, order, probs=probs)
        total = (out[0] * draw(6, 4).detach()).sum() + (out[1] * draw(6).detach()).sum()
        results.append((*out, *torch.autograd.grad(total, (rows, probs))))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("chunk", [3, 7, 100])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_head_is_a_log_softmax_at_the_targets(chunk, frozen):
    """Second implementation: log_softmax over all tokens at once, by autograd."""
    head = Head(6, 11, chunk, torch.float32)
    with torch.no_grad():
        head.weight.copy_(draw(11, 6))
    head.weight.requires_grad_(not frozen)
    targets = torch.tensor([3, 10, NO_TARGET, 0, 7, 7, NO_TARGET])
    hidden = draw(7, 6)
    trained = [hidden] if frozen else [hidden, head.weight]
    reference = (hidden @ head.weight.t()).log_softmax(-1)[range(7), targets]
    reference = reference * (targets != NO_TARGET)
    out = head(hidden, targets)
    torch.testing.assert_close(out, reference)
    grad = draw(7).detach()
    mine = torch.autograd.grad(out, trained, grad)
    for got, wanted in zip(mine, torch.autograd.grad(reference, trained, grad), strict=True):
        torch.testing.assert_close(got, wanted)


def test_the_head_keeps_statistics_and_no_logits():
    """Derivation: forward saves hidden, weight, targets and log-sum-exp; a chunk's logits die."""
    head = Head(6, 1000, 2, torch.float32)
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        head(draw(8, 6), torch.zeros(8, dtype=torch.int64))
    assert sorted(kept) == [8, 8, 48, 6000]


def test_target_log_probs_is_one_operator():
    """Claim of the kernels' package, for the operator that has no autograd of its own."""
    logits, targets = draw(4, 9).detach(), torch.zeros(4, dtype=torch.int64)
    with Seen() as seen:
        target_log_probs(logits, targets)
    assert seen.names == ["target_log_probs"]
