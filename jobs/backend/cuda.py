"""Ranks on CUDA devices: NCCL beside gloo, Megatron's own kernels where they are installed.

The model is the one of CPU ranks: its operators run where their inputs lie. Transformer Engine's
permutation and router product take the place of ours where it is installed, and DeepEP's buffer
where `deep_ep` is; the CPU reference of that buffer never stands in for it here.
"""

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from jobs import backend
from jobs.backend import cpu, patches
from planner.errors import ConfigError
from planner.step import Step
from planner.topology import Topology

LAST_WORDS_S = 30.0
"""Seconds that a failed rank has to leave by itself: NCCL may wait for ranks that are gone."""

TIMEOUT_S = 300.0
"""Seconds after which a collective that ranks are missing from ends them all."""


def require_device(step: Step, topology: Topology) -> None:
    """Check that this machine can run a cell as it asks.

    Raises
    ------
    ConfigError
        Without a CUDA device, with CUDA's own memory pool in place of PyTorch's, with fp32
        activations, for HybridEP without `deep_ep`, and for Transformer Engine's layers without it.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            f"backend = cuda needs a CUDA device, and torch {torch.__version__} sees none; "
            "use meter=default (CPU ranks) or meter=fake"
        )
    pool = torch.cuda.get_allocator_backend()
    if pool != "native":
        raise ConfigError(
            f"PYTORCH_ALLOC_CONF asks for backend:{pool}, which tells neither its blocks nor its "
            "settings, and whose fragments nobody has measured; take backend:native"
        )
    if step.dtype != "bf16":
        raise ConfigError(
            f"step.dtype = {step.dtype} has no flash attention on CUDA; set step.dtype=bf16"
        )
    if step.dispatcher_at(topology) == "hybridep" and not has_hybridep():
        raise ConfigError(
            "dispatcher hybridep on CUDA needs deep_ep with its HybridEPBuffer, which is not here; "
            "install it, or set step.dispatcher=alltoall"
        )
    if step.engine == "te" and not patches.has_transformer_engine():
        raise ConfigError(
            "step.engine = te needs Transformer Engine, which is not here; install "
            "transformer_engine[pytorch], or set step.engine=own"
        )


def has_hybridep() -> bool:
    """Whether DeepEP with its hybrid buffer is installed."""
    if importlib.util.find_spec("deep_ep") is None:
        return False
    return hasattr(importlib.import_module("deep_ep"), "HybridEPBuffer")


def install() -> None:
    """Make Megatron importable with our operators; later calls do nothing.

    Raises
    ------
    RuntimeError
        When Megatron has been imported before, or another backend is installed.
    """
    if not backend.choose("cuda"):
        return
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # a lost rank ends the others
    with patches.quiet():
        patches.apply(patches.fused())


def device_of(rank: int, devices: int) -> torch.device:
    """Return the device of a rank: that of its place on its host, as launchers say it.

    Slurm may show each task its own device alone, which is then number 0.
    """
    place = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", rank)))
    return torch.device("cuda", place % devices)


def start(rank: int, world: int, topology: Topology, rendezvous: str, device: torch.device) -> None:
    """Take ``device``, join the ranks and set up Megatron's groups; arguments as of `cpu.start`.

    Raises
    ------
    ConfigError
        When the topology has another number of ranks, or splits tp, pp or etp.
    """
    cpu.require_runnable(topology)
    if world != topology.world:
        raise ConfigError(
            f"{world} ranks were started, the topology has {topology.world}; start that many"
        )
    install()
    torch.cuda.set_device(device)
    cpu.meet(rank, world, rendezvous, TIMEOUT_S, "cpu:gloo,cuda:nccl")
    cpu.make_groups(topology, TIMEOUT_S)


def connect(device: torch.device, used: Callable[[], int]) -> dict[str, int]:
    """Make every communicator by a first collective; return what each took from the device.

    Parameters
    ----------
    used
        Reads the device's used bytes.
    """
    taken: dict[str, int] = {}
    one = torch.zeros(dist.get_world_size(), device=device)
    for name, group in _groups():
        before = used()
        dist.all_reduce(one[:1], group=group)
        dist.all_to_all_single(one[: group.size()], one[: group.size()].clone(), group=group)
        torch.cuda.synchronize(device)
        taken[name] = used() - before
    return taken


def connect_ring(device: torch.device, used: Callable[[], int]) -> dict[str, int]:
    """Make the communicators of Transformer Engine's ring; return what they took, as `connect`.

    It sends to one neighbour and receives from the other, each through a communicator of their own;
    two ranks before Blackwell send in batches, through their group's (``AttnFuncWithCPAndKVP2P``).
    """
    from megatron.core import parallel_state as state

    group = state.get_context_parallel_group()
    size, place = group.size(), group.rank()
    batched = size == 2 and torch.cuda.get_device_capability(device) < (10, 0)
    if size == 1 or batched:
        return {}
    ranks = dist.get_process_group_ranks(group)
    to, back = ranks[(place + 1) % size], ranks[(place - 1) % size]
    one, other = torch.zeros(2, 1, device=device)
    before = used()
    exchange = [lambda: dist.isend(one, to, group), lambda: dist.irecv(other, back, group)]
    for work in [begin() for begin in (exchange if place % 2 == 0 else reversed(exchange))]:
        work.wait()
    torch.cuda.synchronize(device)
    return {"cp ring": used() - before}


def _groups() -> Iterator[tuple[str, dist.ProcessGroup]]:
    """Yield Megatron's groups of more than one rank, each process group once."""
    from megatron.core import parallel_state as state

    found = (
        ("world", dist.group.WORLD),
        ("cp", state.get_context_parallel_group()),
        ("dp·cp", state.get_data_parallel_group(with_context_parallel=True)),
        ("ep", state.get_expert_model_parallel_group()),
        ("edp", state.get_expert_data_parallel_group()),
    )
    seen: set[int] = set()
    for name, group in found:
        if group is not None and group.size() > 1 and id(group) not in seen:
            seen.add(id(group))
            yield name, group


INDEX_TABLES = ("sort_input_by_local_experts", "restore_output_by_local_experts")


def place_dispatchers(model: torch.nn.Module, device: torch.device) -> None:
    """Put the all-to-all dispatchers' index tables on the device, where fused kernels read them.

    They are made on the CPU where a dispatcher is built without fusion, as ours are.
    """
    for layer in model.decoder.layers:
        dispatcher = layer.mlp.token_dispatcher
        for name in INDEX_TABLES:
            if hasattr(dispatcher, name):
                setattr(dispatcher, name, getattr(dispatcher, name).to(device))
                dispatcher.permute_idx_device = device


def load_libraries(device: torch.device, engine: str) -> int:
    """Multiply matrices forward and backward; return what the libraries keep of the allocator.

    cuBLAS takes a workspace for each handle and stream, and backward has a handle of its own.
    Transformer Engine takes one for plain products, which the router's gate is one of wherever it
    is installed, and one for each stream of grouped products. They are part of no tensor of a
    call, and are there before the first call is followed.
    """
    before = torch.cuda.memory_allocated(device)
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.ones(256, 256, dtype=dtype, device=device, requires_grad=True)
        (x @ x).sum().backward()
        del x
    if patches.has_transformer_engine():
        _load_transformer_engine(device, engine)
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device) - before


def _load_transformer_engine(device: torch.device, engine: str) -> None:
    from megatron.core.transformer.moe.moe_utils import te_general_gemm
    from transformer_engine.pytorch import GroupedLinear

    x = torch.ones(256, 256, dtype=torch.bfloat16, device=device)
    te_general_gemm(x, x, torch.float32, layout="TN")
    if engine == "te":
        GroupedLinear(1, 256, 256, bias=False, params_dtype=x.dtype, device=device)(x, [256])


def stop() -> None:
    """Leave the groups and give up the communication buffers."""
    torch.cuda.synchronize()
    cpu.stop()


def leave_soon() -> None:
    """End this process by force should it not end by itself, once a rank has failed."""
    last = threading.Timer(LAST_WORDS_S, os._exit, (1,))
    last.daemon = True
    last.start()
