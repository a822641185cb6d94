"""What a Gated DeltaNet does between its projections: convolution, gated delta rule, gated norm."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import softplus

from jobs.layout import RequestLayout
from jobs.model.gdn_exchange import to_heads, to_tokens
from jobs.model.kernels.causal_conv import causal_conv
from jobs.model.kernels.gated_delta_rule import gated_delta_rule
from jobs.model.kernels.gated_norm import gated_norm, unit_norm


class Taps(NamedTuple):
    """A layer's small parameters.

    Parameters
    ----------
    conv
        (channels of this rank's heads, width).
    rate, step_bias
        (value heads,) log of the decay rate, and bias of the time step, of all heads.
    scale
        (value channels,) of the norm.
    """

    conv: Tensor
    rate: Tensor
    step_bias: Tensor
    scale: Tensor


class DeltaCore(torch.nn.Module):
    """The mixer between its projections.

    Under context parallelism every rank gives its tokens away for whole requests of its share of
    the heads, and back after the norm, as later releases of Megatron do.

    Parameters
    ----------
    key_heads, key_dim, value_heads, value_dim
        Heads and channels over all ranks; each key head serves several value heads.
    epsilon
        Of the norm.
    group
        Context-parallel ranks, over which heads are divided.
    """

    def __init__(
        self,
        key_heads: int,
        key_dim: int,
        value_heads: int,
        value_dim: int,
        epsilon: float,
        group: ProcessGroup,
    ) -> None:
        super().__init__()
        self.heads, self.channels = (key_heads, value_heads), (key_dim, value_dim)
        self.epsilon = epsilon
        self.group = group

    def forward(self, projected: Tensor, taps: Taps, layout: RequestLayout) -> Tensor:
        """Return (T, value width) of the projection's output, (T, q | k | v | gate | beta | alpha).

        The projection's output lives as long as this runs, as in Megatron's own forward, and not
        for backward: each part is copied.
        """
        lengths, degree = list(layout.lengths), layout.degree
        keys, values = (n * dim for n, dim in zip(self.heads, self.channels, strict=True))
        if degree > 1:
            sections = [keys, keys, values, values, self.heads[1], self.heads[1]]
            projected = to_heads(projected, sections, lengths, self.group)
        widths = [(2 * keys + values), values, self.heads[1], self.heads[1]]
        parts = projected.split([width // degree for width in widths], -1)
        mixed, gate, beta, alpha = (part.contiguous() for part in parts)
        q, k, v = self._by_head(causal_conv(mixed, taps.conv, lengths), degree)
        del mixed
        rate, bias = (p.chunk(degree)[layout.rank] for p in (taps.rate, taps.step_bias))
        log_decay = -rate.exp() * softplus(alpha.float() + bias)
        out = gated_delta_rule(q, k, v, log_decay, beta.sigmoid(), lengths)[0]
        del q, k, v
        out = gated_norm(out, gate.view(out.shape), taps.scale, self.epsilon)[0].flatten(1)
        return to_tokens(out, [values], lengths, self.group) if degree > 1 else out

    def _by_head(self, mixed: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, of unit length and one for each value head, and values."""
        (key_heads, value_heads), (key_dim, value_dim) = self.heads, self.channels
        shapes = (
            (len(mixed), key_heads // degree, key_dim),
            (len(mixed), value_heads // degree, value_dim),
        )
        keys, values = (heads * channels for _, heads, channels in shapes)
        q, k, v = mixed.split([keys, keys, values], -1)
        q, k = (unit_norm(x.contiguous().view(shapes[0]))[0] for x in (q, k))
        repeats = value_heads // key_heads
        if repeats > 1:
            q, k = (x.repeat_interleave(repeats, dim=1) for x in (q, k))
        return q, k, v.contiguous().view(shapes[1])
