"""Ranks on CPUs: what lets Megatron-core 0.16.1 run without CUDA, over gloo."""

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jobs import hybridep
from planner.errors import ConfigError
from planner.topology import Topology

SEED = 1234
"""Seed of Megatron's random streams; nothing in the model draws from them."""

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


class _Stream:
    """A CUDA stream where all work is done when a call returns."""

    def wait_stream(self, stream: object) -> None:
        """Wait for nothing."""

    def record_event(self) -> "_Stream":
        """Return something that can be synchronized with."""
        return self

    def synchronize(self) -> None:
        """Wait for nothing."""


_ONE_STREAM = _Stream()


def _to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ARG001
    """Return split sizes as a list, as the numpy branch of Megatron's function would behave."""
    return tensor.tolist() if as_numpy and torch.is_tensor(tensor) else tensor


@dataclass(frozen=True, slots=True)
class Patch:
    """One replaced attribute: where, by what, and why it must be."""

    module: str
    name: str
    value: Any
    reason: str


def _cuda_patches() -> tuple[Patch, ...]:
    cpu = torch.device("cpu")
    return (
        Patch("torch.cuda", "current_device", lambda: cpu, "weights are moved to it"),
        Patch(
            "torch.cuda", "Stream", lambda *_: _ONE_STREAM, "the all-to-all dispatcher makes one"
        ),
        Patch("torch.cuda", "current_stream", lambda *_: _ONE_STREAM, "compared with that stream"),
        Patch("torch.cuda", "stream", lambda _: contextlib.nullcontext(), "entered for copies"),
        Patch("torch.cuda", "get_rng_state", lambda *_: torch.empty(0), "read when seeding"),
        Patch("torch.cuda", "manual_seed", lambda _: None, "called when seeding"),
    )


def _megatron_patches() -> tuple[Patch, ...]:
    from jobs.model.kernels import mixed_gemm, permutation, swiglu

    random = "megatron.core.tensor_parallel.random"
    moe = "megatron.core.transformer.moe"
    no_state = torch.empty(0, dtype=torch.uint8)
    fused = (
        "Megatron calls Transformer Engine's kernel; ours has the same outputs and saves the same"
    )
    kernels = (
        "fused_permute_with_probs",
        "fused_unpermute",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
    )
    from megatron.core.transformer.moe.router import router_gating_linear

    return (
        Patch(random, "_get_cuda_rng_state", lambda **_: no_state, "there is no CUDA generator"),
        Patch(random, "_set_cuda_rng_state", lambda *_, **__: None, "there is no CUDA generator"),
        Patch(
            "megatron.core.ssm.gated_delta_net",
            "HAVE_FLA",
            True,
            "guards its constructor; the kernels that its forward would call are ours",
        ),
        Patch(f"{moe}.moe_utils", "HAVE_TE", True, "guards the kernels installed below"),
        *(Patch(f"{moe}.moe_utils", k, getattr(permutation, k), fused) for k in kernels),
        Patch(
            f"{moe}.moe_utils",
            "te_general_gemm",
            mixed_gemm.general_gemm,
            "undefined without Transformer Engine: the router's gate raises NameError",
        ),
        Patch(
            f"{moe}.router",
            "router_gating_linear",
            _gate_of_any_length(router_gating_linear),
            "its view(…, -1) is ambiguous for a rank without tokens",
        ),
        Patch(
            f"{moe}.token_dispatcher",
            "maybe_move_tensor_to_cpu",
            _to_cpu,
            "leaves CPU tensors as split sizes, which all_to_all_single rejects",
        ),
        Patch(
            "megatron.core.transformer.mlp",
            "bias_swiglu_impl",
            lambda x, bias, *_: swiglu.swiglu(x),  # noqa: ARG005 - the model has no biases
            "the fused SwiGLU of a GPU is compiled; eager it writes temporaries",
        ),
    )


def _gate_of_any_length(gate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def gate_tokens(x: torch.Tensor, weight: torch.Tensor, bias: Any, dtype: torch.dtype) -> Any:
        if x.numel():
            return gate(x, weight, bias, dtype)
        return torch.nn.functional.linear(x.to(dtype), weight.to(dtype))

    return gate_tokens


_installed = False


def install() -> None:
    """Make Megatron importable and able to run on this machine's CPUs; later calls do nothing.

    Importing ``jobs.model`` calls it. It replaces `torch.cuda` functions in this process.

    Raises
    ------
    RuntimeError
        When Megatron has been imported before.
    """
    global _installed
    if _installed:
        return
    if "megatron.core" in sys.modules:
        raise RuntimeError(
            "megatron.core was imported before jobs.backend.cpu.install(); "
            "import jobs.model (or call install) first"
        )
    _installed = True  # set first: the kernels' package calls install when it is imported
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron compiles small functions: run them eager
    warnings.filterwarnings("ignore", _SILENCED_ALWAYS, FutureWarning)
    hybridep.install()
    for patch in _cuda_patches():
        _apply(patch)
    with warnings.catch_warnings():
        for category, message in _SILENCED:
            warnings.filterwarnings("ignore", message, category)
        for patch in _megatron_patches():
            _apply(patch)
        importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")


def _apply(patch: Patch) -> None:
    setattr(importlib.import_module(patch.module), patch.name, patch.value)


def start(
    rank: int, world: int, topology: Topology, rendezvous: str, timeout: float = 120.0
) -> None:
    """Join the ranks and set up Megatron's groups.

    Parameters
    ----------
    rank, world
        This process among all.
    rendezvous
        Where the ranks meet: ``env://`` (torchrun's variables), ``tcp://host:port``, or
        ``file:///path``, a file that does not exist yet and that the caller removes.
    timeout
        Seconds after which a rank that waits for the others gives up.

    Raises
    ------
    ConfigError
        When the topology has another number of ranks, or splits tp, pp or etp, which the model
        does not.
    """
    require_runnable(topology)
    if world != topology.world:
        raise ConfigError(
            f"{world} ranks were started, the topology has {topology.world}; start that many"
        )
    install()
    meet = {"init_method": rendezvous}
    if rendezvous.startswith("file://"):
        # A store made by init_method deletes its file once as many copies of it have died as there
        # are ranks: too early, or so late that it hits a new file of that name. Ranks then hang.
        meet = {"store": dist.FileStore(rendezvous.removeprefix("file://"))}
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, timeout=timedelta(seconds=timeout), **meet
    )
    make_groups(topology, timeout)


def require_runnable(topology: Topology) -> None:
    """Check that the model can run under ``topology``; raises `ConfigError` otherwise."""
    split = {axis: getattr(topology, axis) for axis in ("tp", "pp", "etp")}
    if set(split.values()) != {1}:
        raise ConfigError(f"the model runs at tp = pp = etp = 1 only; the topology has {split}")


def make_groups(topology: Topology, timeout: float = 120.0) -> None:
    """Make Megatron's groups among the ranks that have met, and seed its random streams."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(
        context_parallel_size=topology.cp,
        expert_model_parallel_size=topology.ep,
        expert_tensor_parallel_size=1,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=max(1, round(timeout / 60)),
    )
    model_parallel_cuda_manual_seed(SEED)


def stop() -> None:
    """Leave the groups and give up the communication buffers."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import fused_a2a

    fused_a2a.reset_hybrid_ep_buffer()
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
