"""A device that computes nothing: every tensor has its memory, and no memory is ever touched.

So a full-size model runs on a laptop with CUDA's own caching allocator, as large as the device
says it is. What a call would read from the device, `full_scale` answers.
"""

from typing import Any

import torch
from host_kernels import HostKernels, give_back
from torch import Tensor
from torch.utils._pytree import tree_map


class UnknownSizeError(RuntimeError):
    """What an operator returns depends on values, of which there are none."""


class NoKernels(HostKernels):
    """Takes what an operator returns from the allocator, and leaves it as it is."""

    def _take_apart(self, own: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator's body; only make its results where that would have to read values."""
        try:
            return super()._take_apart(own, args, kwargs)
        except UnknownSizeError:
            with self:
                return own._abstract_fn(*args, **kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        if func is torch.ops.aten.nonzero.default:
            raise UnknownSizeError(func)
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0
        found = func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        return give_back(func, found, args, kwargs, lambda x: _untouched(x, device))

    def _fetch(self, func: Any, args: Any, kwargs: Any) -> Any:
        kwargs = {**kwargs, "device": torch.device("meta")}
        found = func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        return torch.zeros(found.shape, dtype=found.dtype)


def _to_meta(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    if isinstance(x, torch.device):
        return torch.device("meta")
    return None if isinstance(x, torch.Generator) else x


def _untouched(x: Any, device: torch.device) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
