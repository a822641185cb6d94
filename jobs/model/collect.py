"""Collect garbage once, after the first layer has been recomputed.

Where layers are compiled, a recompile in the first recompute can leave a dead call stack in a
reference cycle that keeps a layer's tensors until the collector's next full pass
(docs/experiments/compile-garbage.md). One collection then costs some tenths of a second, once.
"""

import gc
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle


def collect_after_first_recompute(layers: torch.nn.ModuleList) -> None:
    """Collect when any of ``layers`` has first run under backward; never again."""
    handles: list[RemovableHandle] = []

    def collect(_layer: torch.nn.Module, _args: Any, _output: Any) -> None:
        if handles and torch._C._current_autograd_node() is not None:
            while handles:
                handles.pop().remove()
            gc.collect()

    handles += [layer.register_forward_hook(collect) for layer in layers]
