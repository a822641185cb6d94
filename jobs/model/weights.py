"""Set the weights of a model: drawn from a seed, or read from a checkpoint."""

import hashlib
import math
from pathlib import Path

import torch

from jobs.model.hf_files import load_pretrained
from jobs.model.names import Named, global_parameters
from jobs.spec import CellSpec

ADAPTER_OUT_STD = 0.02
"""Spread of the second adapter factor: not zero, so that the first one has a gradient."""

RESIDUAL_WRITERS = ("linear_proj.weight", "fc2.weight", "out_proj.weight")

DECAY_RATES, TIME_STEPS = (1.0, 16.0), (0.001, 0.1)
"""Ranges of a linear-attention head's decay rate (even) and time step (even in its logarithm), as
flash-linear-attention's layer draws them (``fla/layers/gated_deltanet.py``)."""


def load_weights(model: torch.nn.Module, spec: CellSpec) -> None:
    """Fill every parameter of this rank as the cell's ``weights`` say.

    Raises
    ------
    CheckpointError
        When the checkpoint and the model do not fit together.
    """
    draw_weights(model, spec.weights.seed)
    if spec.weights.kind == "pretrained":
        assert spec.weights.path is not None
        load_pretrained(model, spec.model, Path(spec.weights.path))


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Draw all weights and adapters from ``seed`` and their global names.

    A value depends on nothing else but the kind of device, on which it is drawn, so that every
    topology has the same model. Norm scales are 1; decays of linear attention span what its layers
    are used with (`DECAY_RATES`, `TIME_STEPS`); other weights are normal with variance 1/fan-in,
    those that write to the residual stream divided by twice the layers as well (Megatron's scaled
    initialisation).
    """
    layers = len(model.decoder.layers)
    with torch.no_grad():
        for named in global_parameters(model):
            _draw(named, seed, layers)


def _draw(named: Named, seed: int, layers: int) -> None:
    data = named.data
    digest = hashlib.sha256(f"{seed}/{named.name}".encode()).digest()
    generator = torch.Generator(data.device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    how = {"generator": generator, "device": data.device}
    if named.name.endswith(("A_log", "dt_bias")):
        data.copy_(_memory(named.name, torch.rand(data.shape, **how)))
    elif data.dim() == 1:
        data.fill_(1.0)
    else:
        data.copy_(torch.randn(data.shape, **how).mul_(_spread(named, layers)))


def _memory(name: str, even: torch.Tensor) -> torch.Tensor:
    """Return a linear-attention head's ``A_log`` or ``dt_bias`` from even draws in [0, 1)."""
    low, high = DECAY_RATES if name.endswith("A_log") else map(math.log, TIME_STEPS)
    drawn = low + (high - low) * even
    if name.endswith("A_log"):
        return drawn.log()
    step = drawn.exp()
    return step + torch.log(-torch.expm1(-step))  # what softplus takes to the step


def _spread(named: Named, layers: int) -> float:
    if "lora_b" in named.name:
        return ADAPTER_OUT_STD
    if named.name == "embedding.weight":
        return 1.0
    # Adapters lie (in, out), base weights (out, in), a convolution's taps (out, 1, width).
    fan_in = named.data.shape[0] if "lora_a" in named.name else named.data[0].numel()
    to_residual = any(part in named.name for part in RESIDUAL_WRITERS)
    return 1 / math.sqrt(fan_in * (2 * layers if to_residual else 1))
