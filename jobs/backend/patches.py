"""What is replaced in Megatron-core 0.16.1 whatever a rank runs on, and how replacing is done."""

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from jobs import backend

_SILENCED = (
    (UserWarning, r"Transformer Engine and Apex are not installed"),
    (UserWarning, r"Apex is not installed"),
    (DeprecationWarning, r"The following imports from `dynamic_context\.py`"),
    (DeprecationWarning, r"\s*The 'megatron\.core\.transformer\.custom_layers"),
)
"""Said by Megatron at import, of parts that are not used here."""

_SILENCED_ALWAYS = (
    r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
)
"""Said of Megatron's collectives in every run."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One replaced attribute: where, by what, and why it must be."""

    module: str
    name: str
    value: Any
    reason: str


def apply(patches: Iterable[Patch]) -> None:
    """Replace the attributes."""
    for patch in patches:
        setattr(importlib.import_module(patch.module), patch.name, patch.value)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Import Megatron's layers without what it says of parts that are not used here."""
    warnings.filterwarnings("ignore", _SILENCED_ALWAYS, FutureWarning)
    with warnings.catch_warnings():
        for category, message in _SILENCED:
            warnings.filterwarnings("ignore", message, category)
        yield
        importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")


def has_transformer_engine() -> bool:
    """Whether Transformer Engine is installed, whose kernels Megatron then calls by itself."""
    return importlib.util.find_spec("transformer_engine") is not None


def fused() -> tuple[Patch, ...]:
    """Return our operators for the kernels that Megatron's layers would call.

    Those of Transformer Engine stay where it is installed and a device runs them.
    """
    from megatron.core.transformer.moe.router import router_gating_linear

    from jobs.model.kernels import swiglu

    always = (
        Patch(
            "megatron.core.ssm.gated_delta_net",
            "HAVE_FLA",
            True,
            "guards its constructor; the kernels that its forward would call are ours",
        ),
        Patch(
            "megatron.core.transformer.moe.router",
            "router_gating_linear",
            _gate_of_any_length(router_gating_linear),
            "its view(…, -1) is ambiguous for a rank without tokens",
        ),
        Patch(
            "megatron.core.transformer.mlp",
            "bias_swiglu_impl",
            lambda x, bias, *_: swiglu.swiglu(x),  # noqa: ARG005 - the model has no biases
            "the fused SwiGLU of a GPU is compiled; eager it writes temporaries",
        ),
        Patch(
            "megatron.core.transformer.moe.experts",
            "weighted_bias_swiglu_impl",
            lambda x, bias, probs, *_: swiglu.weighted_swiglu(x, probs.squeeze(-1)),  # noqa: ARG005
            "as above, of Transformer Engine's grouped experts",
        ),
    )
    theirs = has_transformer_engine() and backend.chosen() == "cuda"
    ours = () if theirs else _permutations()
    return (*always, *ours, *_mixed_gemm(theirs))


def _mixed_gemm(theirs: bool) -> tuple[Patch, ...]:
    from megatron.core.transformer.moe import moe_utils

    from jobs.model.kernels import mixed_gemm

    if theirs and moe_utils.te_general_gemm is not None:
        return ()
    why = "undefined without Transformer Engine, and with one that it cannot call (2.13): a gate in"
    return (
        Patch(
            moe_utils.__name__,
            "te_general_gemm",
            mixed_gemm.general_gemm,
            f"{why} fp32 would copy its input, or raise NameError",
        ),
    )


def _permutations() -> tuple[Patch, ...]:
    from jobs.model.kernels import permutation

    utils = "megatron.core.transformer.moe.moe_utils"
    why = "Megatron calls Transformer Engine's kernel; ours has the same outputs and saves the same"
    kernels = (
        "fused_permute_with_probs",
        "fused_unpermute",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
    )
    return (
        Patch(utils, "HAVE_TE", True, "guards the kernels installed below"),
        *(Patch(utils, kernel, getattr(permutation, kernel), why) for kernel in kernels),
    )


def _gate_of_any_length(gate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def gate_tokens(x: torch.Tensor, weight: torch.Tensor, bias: Any, dtype: torch.dtype) -> Any:
        if x.numel():
            return gate(x, weight, bias, dtype)
        return torch.nn.functional.linear(x.to(dtype), weight.to(dtype))

    return gate_tokens
