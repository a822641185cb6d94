"""Names of parameters that are the same on every topology: experts by their global index."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Named:
    """One parameter, or one expert's slice of a parameter that holds all local experts.

    Parameters
    ----------
    name
        Parameter name; for an expert's slice followed by the expert's global index.
    parameter, local_expert
        The parameter, and the index of the slice along its first dimension, if it is one.
    """

    name: str
    parameter: torch.nn.Parameter
    local_expert: int | None

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
            yield Named(name, parameter, None)
            continue
        first = ep_rank * parameter.shape[0]
        for local in range(parameter.shape[0]):
            yield Named(f"{name}.{first + local}", parameter, local)
