"""Compile each layer of the model, as trainers on GPUs do."""

import torch
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

EAGER = ((MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize"),)
"""Methods that a graph cannot hold: this one copies split sizes on a stream of its own."""


def compile_layers(layers: torch.nn.ModuleList, backend: str = "inductor") -> None:
    """Replace every layer by its compiled self.

    Parameters
    ----------
    backend
        torch.compile's backend; ``aot_eager`` traces and recompiles like the default and runs
        without a code generator.
    """
    for owner, name in EAGER:
        setattr(owner, name, torch.compiler.disable(getattr(owner, name)))
    for index, layer in enumerate(layers):
        layers[index] = torch.compile(layer, backend=backend)
