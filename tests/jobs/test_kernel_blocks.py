"""Operators block by block: the same values whatever fits in scratch, on whatever device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from jobs.model.kernels import row_blocks
from jobs.model.kernels.causal_attention import causal_attention, causal_attention_backward
from jobs.model.kernels.causal_conv import causal_conv, causal_conv_backward
from jobs.model.kernels.gated_delta_rule import gated_delta_rule, gated_delta_rule_backward
from jobs.model.kernels.gated_norm import (
    gated_norm,
    gated_norm_backward,
    unit_norm,
    unit_norm_backward,
)
from jobs.model.kernels.mixed_gemm import mixed_gemm
from jobs.model.kernels.output_gate import output_gate, output_gate_backward
from jobs.model.kernels.permutation import (
    permute,
    permute_backward,
    sort_chunks_with_probs,
    unpermute,
    unpermute_backward,
)
from jobs.model.kernels.rms_norm import rms_norm, rms_norm_backward
from jobs.model.kernels.swiglu import (
    swiglu,
    swiglu_backward,
    weighted_swiglu,
    weighted_swiglu_backward,
)
from jobs.model.kernels.target_log_probs import logits_gradient, target_log_probs

LENGTHS = [70, 1, 2, 65]
T = sum(LENGTHS)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def routing() -> tuple[torch.Tensor, torch.Tensor]:
    """Top-2 of 6 experts of each token, and their probabilities."""
    probs = draw(T, 6).softmax(-1)
    chosen = probs.topk(2, -1).indices
    chosen_map = torch.zeros(T, 6, dtype=torch.bool).scatter_(1, chosen, True)
    return chosen_map, probs * chosen_map


MAP, PROBS = routing()
ROW_IDS = permute(draw(T, 16), PROBS, MAP, 2 * T)[2]
HEADS = (draw(T, 4, 8), draw(T, 4, 8), draw(T, 4, 16))
DECAY, WRITTEN = -draw(T, 4).abs(), draw(T, 4).sigmoid()
TARGETS = torch.arange(T) % 40 - 1
QKV = (draw(T, 1, 4, 8), draw(T, 1, 2, 8, seed=1), draw(T, 1, 2, 8, seed=2))
ATTENDED = causal_attention(*QKV, LENGTHS, 1, 0, 0.3)
RULE = gated_delta_rule(*HEADS, DECAY, WRITTEN, LENGTHS)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rms_norm": (rms_norm, (draw(T, 1, 16), draw(16), 1e-6)),
    "rms_norm_backward": (
        rms_norm_backward,
        (draw(T, 1, 16, seed=1), draw(T, 1, 16), draw(16), draw(T).abs()),
    ),
    "swiglu": (swiglu, (draw(T, 1, 12),)),
    "swiglu_backward": (swiglu_backward, (draw(T, 1, 6), draw(T, 1, 12))),
    "weighted_swiglu": (weighted_swiglu, (draw(T, 12), draw(T))),
    "weighted_swiglu_backward": (
        weighted_swiglu_backward,
        (draw(T, 6), draw(T, 12), draw(T)),
    ),
    "output_gate": (output_gate, (draw(T, 1, 4, 8), draw(T, 1, 4, 8, seed=3))),
    "output_gate_backward": (
        output_gate_backward,
        (draw(T, 1, 4, 8, seed=2), draw(T, 1, 4, 8), draw(T, 1, 4, 8, seed=3)),
    ),
    "unit_norm": (unit_norm, (draw(T, 4, 8),)),
    "unit_norm_backward": (
        unit_norm_backward,
        (draw(T, 4, 8), draw(T, 4, 8, seed=1), draw(T, 4).abs()),
    ),
    "gated_norm": (gated_norm, (draw(T, 4, 8), draw(T, 4, 8, seed=1), draw(8), 1e-6)),
    "gated_norm_backward": (
        gated_norm_backward,
        (draw(T, 4, 8), draw(T, 4, 8, seed=1), draw(T, 4, 8, seed=2), draw(8), draw(T, 4).abs()),
    ),
    "target_log_probs": (target_log_probs, (draw(T, 40), TARGETS)),
    "logits_gradient": (logits_gradient, (draw(T, 40), TARGETS, draw(T), draw(T, seed=1))),
    "mixed_gemm TN": (mixed_gemm, (draw(6, 16), draw(T, 16), torch.float32, "TN")),
    "mixed_gemm NN": (mixed_gemm, (draw(6, 16), draw(T, 6), torch.float32, "NN")),
    "mixed_gemm NT": (mixed_gemm, (draw(T, 16), draw(T, 6), torch.float32, "NT")),
    "permute": (permute, (draw(T, 16), PROBS, MAP, 2 * T)),
    "permute_backward": (permute_backward, (draw(2 * T, 16), draw(2 * T), ROW_IDS)),
    "unpermute": (unpermute, (draw(2 * T, 16), ROW_IDS)),
    "unpermute_backward": (unpermute_backward, (draw(T, 16), ROW_IDS, 2 * T)),
    "sort_chunks": (
        sort_chunks_with_probs,
        (draw(9, 4), draw(9), torch.tensor([2, 4, 3]), torch.tensor([2, 0, 1])),
    ),
    "causal_conv": (causal_conv, (draw(T, 12), draw(12, 4), LENGTHS)),
    "causal_conv_backward": (
        causal_conv_backward,
        (draw(T, 12, seed=1), draw(T, 12), draw(12, 4), LENGTHS),
    ),
    "gated_delta_rule": (gated_delta_rule, (*HEADS, DECAY, WRITTEN, LENGTHS)),
    "gated_delta_rule_backward": (
        lambda *args: gated_delta_rule_backward(*args)[:5],  # what follows is unset
        (draw(T, 4, 16, seed=5), *HEADS, RULE[1], WRITTEN, RULE[2], LENGTHS),
    ),
    "causal_attention": (causal_attention, (*QKV, LENGTHS, 1, 0, 0.3)),
    "causal_attention_backward": (
        causal_attention_backward,
        (draw(T, 1, 32), *QKV, *ATTENDED, LENGTHS, 1, 0, 0.3),
    ),
}


def outputs(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


@pytest.mark.parametrize("name", CASES)
def test_values_do_not_depend_on_the_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second implementation: the same operator with all rows in one block."""
    operator, arguments = CASES[name]
    whole = outputs(operator(*arguments))
    monkeypatch.setattr(row_blocks, "SCRATCH", 4 * 16 * 5)  # a few rows, or a single one
    for part, other in zip(outputs(operator(*arguments)), whole, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-5, atol=1e-5)


class OnTheSide(TorchFunctionMode):
    """Notes each tensor that is made without a word on which device."""

    MAKERS = (torch.arange, torch.zeros, torch.empty, torch.full, torch.ones, torch.eye)

    def __init__(self) -> None:
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (*self.MAKERS, torch.tensor) and (kwargs or {}).get("device") is None:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_made_on_a_device_by_default(name: str) -> None:
    """Reference: a CUDA rank's default device is the CPU; its tensors must follow its inputs."""
    operator, arguments = CASES[name]
    if name == "gated_delta_rule_backward":
        operator = gated_delta_rule_backward
    with OnTheSide() as side:
        operator._init_fn(*arguments)
    assert side.found == []


def test_blocks_cover_rows_once_and_stay_within_scratch() -> None:
    """Reference: the definition: runs of rows whose fp32 copy fits."""
    for rows, width in ((0, 8), (1, 2**30), (1000, 2048), (100_000, 8192)):
        found = list(row_blocks.row_blocks(rows, width))
        ends = [0, *(block.stop for block in found)]
        assert [block.start for block in found] == ends[:-1]
        assert ends[-1] == rows
        longest = max((block.stop - block.start for block in found), default=0)
        assert longest <= 1 or 4 * width * longest <= row_blocks.SCRATCH


@pytest.mark.parametrize(("degree", "lengths"), [(1, [20, 28]), (2, [32, 64])])
def test_flash_attention_of_a_device_takes_what_it_is_given(degree, lengths) -> None:
    """Reference: torch's own rules for shapes and arguments of CUDA's flash attention.

    They are those of the meta device, on which the operator takes the way that it takes on CUDA.
    """
    tokens = 48
    query, key = (
        torch.empty(rows, 1, heads, 16, device="meta", dtype=torch.bfloat16)
        for rows, heads in ((tokens, 4), (tokens * degree, 2))
    )
    layout = (lengths, degree, degree - 1, 0.25)
    out, log_sum = causal_attention._init_fn(query, key, key.clone(), *layout)
    assert (out.shape, log_sum.shape) == ((tokens, 1, 64), (4, tokens))
    grads = causal_attention_backward._init_fn(
        torch.empty_like(out), query, key, key.clone(), out, log_sum, *layout
    )
    assert [grad.shape for grad in grads] == [query.shape, key.shape, key.shape]
    assert {(grad.device.type, grad.dtype) for grad in grads} == {("meta", torch.bfloat16)}
