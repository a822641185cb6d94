"""Names of parameters that are the same on every topology: experts by their global index.

They are the same whoever's layers hold them: of Transformer Engine's grouped layers, which keep one
parameter an expert, each is named as that expert's slice of `jobs.model.experts`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from torch import Tensor

OF_ONE = re.compile(r"(.+\.experts)\.linear_(fc[12]\.weight)(\d+)")
"""An expert's own parameter: its experts, what it is, and the local expert."""


@dataclass(frozen=True, slots=True)
class Named:
    """One parameter, or one expert's slice of a parameter that holds all local experts.

    Parameters
    ----------
    name
        Parameter name; for an expert's followed by the expert's global index.
    parameter, local_expert
        The parameter, and the index of the slice along its first dimension, if it is one.
    expert
        Global index of the expert, if it is an expert's.
    """

    name: str
    parameter: torch.nn.Parameter
    local_expert: int | None = None
    expert: int | None = None

    def _part(self, whole: Tensor) -> Tensor:
        return whole if self.local_expert is None else whole[self.local_expert]

    @property
    def data(self) -> Tensor:
        """The values, a view."""
        return self._part(self.parameter.data)

    @property
    def gradient(self) -> Tensor:
        """The gradient, a view; raises where there is none."""
        if self.parameter.grad is None:
            raise RuntimeError(f"{self.name} has no gradient")
        return self._part(self.parameter.grad)


def global_parameters(model: torch.nn.Module) -> Iterator[Named]:
    """Yield this rank's parameters, those of experts one expert at a time."""
    ep_rank = parallel_state.get_expert_model_parallel_rank()
    for name, parameter in model.named_parameters():
        if ".experts." not in name:
            yield Named(name, parameter)
        elif own := OF_ONE.fullmatch(name):
            experts = model.get_submodule(own[1]).num_local_experts
            expert = ep_rank * experts + int(own[3])
            yield Named(f"{own[1]}.{own[2]}.{expert}", parameter, None, expert)
        else:
            yield from _slices(name.replace(".linear_", "."), parameter, ep_rank)


def _slices(name: str, parameter: torch.nn.Parameter, ep_rank: int) -> Iterator[Named]:
    """Yield each local expert's slice of a parameter of all of them."""
    first = ep_rank * parameter.shape[0]
    for local in range(parameter.shape[0]):
        yield Named(f"{name}.{first + local}", parameter, local, first + local)
