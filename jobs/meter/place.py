"""Place: which module, autograd node and phase the process is in when an operator runs.

Global forward hooks keep a stack of module paths; they fire in recompute too. In backward proper
the stack is empty, so each module stamps the autograd nodes that it created (``Node.metadata``) and
the node at work gives the path back.
"""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_leaves

STAMP = "peakcast.module"


class Place(NamedTuple):
    """Where an operator runs: ``phase``, dotted ``module`` path, name of the autograd ``node``."""

    phase: str
    module: str
    node: str


class Whereabouts:
    """Follows the place of the process while its hooks are installed.

    Parameters
    ----------
    seconds
        Time spent in the hooks since `install`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._paths: dict[nn.Module, str] = {}
        self._parameters: dict[int, str] = {}
        self._stack: list[tuple[str, bool]] = []  # (path, entered under an autograd node)
        self._forward = True
        self._removals: list[Callable[[], None]] = []

    def name(self, model: nn.Module) -> None:
        """Give every module of ``model`` its dotted path (the model itself is "")."""
        for path, module in model.named_modules():
            self._paths[module] = path
        for path, parameter in model.named_parameters():
            self._parameters[id(parameter)] = path.rpartition(".")[0]

    def install(self) -> None:
        """Start following: the process is taken to be at the start of a forward."""
        self._stack.clear()
        self._forward = True
        self.seconds = 0.0
        self._removals = [
            register_module_forward_pre_hook(self._enter).remove,
            register_module_forward_hook(self._leave, always_call=True).remove,
        ]

    def remove(self) -> None:
        """Take every hook away."""
        while self._removals:
            self._removals.pop()()
        self._stack.clear()

    def forward_done(self) -> None:
        """From here on, what runs outside all modules belongs to backward."""
        self._forward = False

    def now(self) -> Place:
        """Return the place of the operator at work."""
        node = torch._C._current_autograd_node()
        if node is None:
            phase = "forward" if self._forward else "backward"
            return Place(phase, self._stack[-1][0] if self._stack else "", "")
        name = node.name().rpartition("::")[2]
        if self._stack and self._stack[-1][1]:
            return Place("recompute", self._stack[-1][0], name)
        if name == "AccumulateGrad":
            return Place("backward", self._parameters.get(id(node.variable), ""), name)
        # A node's formula runs with gradients off; a checkpoint turns them on to run again.
        phase = "recompute" if torch.is_grad_enabled() else "backward"
        return Place(phase, node.metadata.get(STAMP, ""), name)

    def _enter(self, module: nn.Module, args: object) -> None:
        path = self._paths.get(module)
        if path is None:
            return
        start = perf_counter()
        under_node = torch._C._current_autograd_node() is not None
        if not under_node:
            self._forward = True
        self._stamp(args, self._stack[-1][0] if self._stack else "")
        self._stack.append((path, under_node))
        self.seconds += perf_counter() - start

    def _leave(self, module: nn.Module, _args: object, output: object) -> None:
        path = self._paths.get(module)
        if path is None:
            return
        start = perf_counter()
        while self._stack and self._stack.pop()[0] != path:
            pass  # a module inside it raised before its own hook could run
        self._stamp(output, path)
        self.seconds += perf_counter() - start

    def _stamp(self, tensors: object, path: str) -> None:
        """Write ``path`` on the autograd nodes behind ``tensors`` that bear no path yet.

        An inner module's hook fires before the outer one's, so the innermost module wins.
        """
        todo = [
            leaf.grad_fn
            for leaf in tree_leaves(tensors)
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
        ]
        while todo:
            node = todo.pop()
            metadata = node.metadata
            if STAMP not in metadata:
                metadata[STAMP] = path
                todo += [source for source, _ in node.next_functions if source is not None]
