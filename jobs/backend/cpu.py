"""Ranks on CPUs: what lets Megatron-core 0.16.1 run without CUDA, over gloo."""

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jobs import backend, hybridep
from jobs.backend import patches
from jobs.backend.patches import Patch
from planner.errors import ConfigError
from planner.topology import Topology

SEED = 1234
"""Seed of Megatron's random streams; nothing in the model draws from them."""


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


def _cpu_patches() -> tuple[Patch, ...]:
    random = "megatron.core.tensor_parallel.random"
    no_state = torch.empty(0, dtype=torch.uint8)
    return (
        Patch(random, "_get_cuda_rng_state", lambda **_: no_state, "there is no CUDA generator"),
        Patch(random, "_set_cuda_rng_state", lambda *_, **__: None, "there is no CUDA generator"),
        Patch(
            "megatron.core.transformer.moe.token_dispatcher",
            "maybe_move_tensor_to_cpu",
            _to_cpu,
            "leaves CPU tensors as split sizes, which all_to_all_single rejects",
        ),
    )


def install() -> None:
    """Make Megatron importable and able to run on this machine's CPUs; later calls do nothing.

    Importing ``jobs.model`` calls it. It replaces `torch.cuda` functions in this process.

    Raises
    ------
    RuntimeError
        When Megatron has been imported before, or another backend is installed.
    """
    if not backend.choose("cpu"):
        return
    hybridep.install()
    patches.apply(_cuda_patches())
    with patches.quiet():
        patches.apply((*_cpu_patches(), *patches.fused()))


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
    meet(rank, world, rendezvous, timeout, "gloo")
    make_groups(topology, timeout)


def meet(rank: int, world: int, rendezvous: str, timeout: float, kind: str) -> None:
    """Join the ranks at ``rendezvous``, with torch's process group ``kind``."""
    where: dict[str, Any] = {"init_method": rendezvous}
    if rendezvous.startswith("file://"):
        # A store made by init_method deletes its file once as many copies of it have died as there
        # are ranks: too early, or so late that it hits a new file of that name. Ranks then hang.
        where = {"store": dist.FileStore(rendezvous.removeprefix("file://"))}
    dist.init_process_group(
        kind, rank=rank, world_size=world, timeout=timedelta(seconds=timeout), **where
    )


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
