"""Kernels of a device whose memory is host memory: torch's own CPU operators on the same bytes.

`HostKernels` stands under every other dispatch mode of a process. PyTorch's CUDA tensors, streams
and caching allocator stay what they are; only where CUDA would launch a kernel, the CPU's operator
runs on a view of the tensors' memory. Scratch that a CUDA kernel takes from the allocator does not
exist here, but for cuBLAS's workspaces.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
BLAS_WORKSPACE_BYTES = 32 * 2**20
"""What PyTorch gives cuBLAS on a Hopper device, for each handle and stream
(``aten/src/ATen/cuda/CublasHandlePool.cpp``)."""

WITHOUT_KERNEL = frozenset(
    {
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "set_"),
        *("resize_", "record_stream", "_pin_memory", "is_pinned"),
        *("squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_"),
    }
)
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm"})


def host_view(x: Tensor) -> Tensor:
    """Return a CPU tensor over the memory of a tensor on the device."""
    found = torch.empty(0, dtype=x.dtype)
    storage = x.untyped_storage()
    if storage.nbytes():
        raw = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        memory = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        found.set_(memory, x.storage_offset(), x.shape, x.stride())
    else:
        found = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return found


def on_device(x: Any, device: torch.device) -> Any:
    """Return a CPU result as a tensor of the device's allocator."""
    if not isinstance(x, Tensor) or x.device.type != "cpu":
        return x
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    if x.numel():
        host_view(made).copy_(x)
    return made


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *_: Any,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Return the nine results of CUDA's operator; its random state is that of no dropout."""
    out, log_sum = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout, causal, scale=scale
    )
    none, state = torch.empty(0), torch.empty(2, dtype=torch.uint64)
    sizes = query.shape[2], key.shape[2]
    return out, log_sum, none, none, *sizes, state, torch.empty(0, dtype=torch.uint64), none


def _flash_backward(*args: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    dropout, causal = args[10:12]
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *args[:6], dropout, causal, scale=scale
    )


ON_HOST: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
}
"""Operators that the CPU has under another name."""


class HostKernels(TorchDispatchMode):
    """Runs what CUDA would run."""

    def __init__(self) -> None:
        super().__init__()
        self._workspaces: dict[tuple[int, int], Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``; on the host where a tensor of the device takes part."""
        kwargs = kwargs or {}
        device = _device(args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        if func._can_decompose():  # met below autograd, where nothing has taken it apart yet
            with self:
                return func.decompose(*args, **kwargs)
        if _needs_no_kernel(func):
            return func(*args, **kwargs)
        own = OPDEFS.get(func._schema.name)
        if own is not None:
            return self._take_apart(own, args, kwargs)
        if torch.device(kwargs.get("device") or device).type == "cpu":
            return self._fetch(func, args, kwargs)
        return self._run(func, args, kwargs, device)

    def _take_apart(self, own: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator of ours by its body, of which each step is met here again."""
        with self:
            return own._init_fn(*args, **kwargs)

    def _fetch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return a copy on the host of what lies on the device."""
        host_args, host_kwargs = tree_map(_to_host, (args, kwargs))
        return func(*host_args, **host_kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Run an operator that has a kernel, and return what it returns."""
        name = func._schema.name.split("::")[-1]
        if name in PRODUCTS:
            self._workspace(device)
        host_args, host_kwargs = tree_map(_to_host, (args, kwargs))
        found = ON_HOST.get(name, func)(*host_args, **host_kwargs)
        return give_back(func, found, args, kwargs, lambda x: on_device(x, device))

    def _workspace(self, device: torch.device) -> None:
        """Take what cuBLAS takes when this thread's handle first multiplies on a stream."""
        place = (threading.get_ident(), torch.cuda.current_stream(device).cuda_stream)
        if place not in self._workspaces:
            self._workspaces[place] = torch.empty(
                BLAS_WORKSPACE_BYTES, dtype=torch.uint8, device=device
            )


def _to_host(x: Any) -> Any:
    if isinstance(x, Tensor):
        return host_view(x) if x.device.type == "cuda" else x
    if isinstance(x, torch.device):
        return torch.device("cpu")
    if isinstance(x, torch.Generator) and x.device.type == "cuda":
        return torch.Generator().manual_seed(
            x.initial_seed()
        )  # as if drawn from for the first time
    return x


def _device(args: Any, kwargs: Any) -> torch.device | None:
    """Return the device that takes part, if one does."""
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.device.type == "cuda":
            return leaf.device
        if isinstance(leaf, torch.device) and leaf.type == "cuda":
            return torch.device(
                "cuda", torch.cuda.current_device() if leaf.index is None else leaf.index
            )
    return None


def _needs_no_kernel(func: Any) -> bool:
    """Whether it only takes memory, or looks at a tensor in another way."""
    schema = func._schema
    if schema.name.split("::")[-1] in WITHOUT_KERNEL:
        return True
    aliases = [r.alias_info for r in schema.returns]
    return bool(aliases) and all(a is not None and not a.is_write for a in aliases)


def give_back(func: Any, found: Any, args: Any, kwargs: Any, make: Callable[[Any], Any]) -> Any:
    """Return an operator's results: the caller's own tensors where it wrote to them, else made."""
    schema = func._schema
    written = {
        next(iter(declared.alias_info.before_set)): _argument(declared, index, args, kwargs)
        for index, declared in enumerate(schema.arguments)
        if declared.alias_info is not None and declared.alias_info.is_write
    }
    if not schema.returns:
        return None
    values = (found,) if len(schema.returns) == 1 else tuple(found)
    results = []
    for declared, value in zip(schema.returns, values, strict=True):
        info = declared.alias_info
        mine = info is not None and info.is_write
        results.append(written[next(iter(info.before_set))] if mine else tree_map(make, value))
    return results[0] if len(results) == 1 else tuple(results)


def _argument(declared: Any, index: int, args: Any, kwargs: Any) -> Any:
    return kwargs[declared.name] if declared.name in kwargs else args[index]
