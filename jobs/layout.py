"""Where the tokens of packed requests lie on one context-parallel rank (Megatron's zigzag)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from planner.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """Requests packed one after another, each cut into ``2·degree`` chunks.

    A rank holds of every request chunk ``rank``, then chunk ``2·degree - 1 - rank``. At degree 1 it
    holds requests whole. Megatron hands it to attention as ``packed_seq_params``.

    Parameters
    ----------
    lengths
        Tokens of each request over all ranks, padding included.
    degree, rank
        Context-parallel size, and the place of this rank.

    Raises
    ------
    ConfigError
        When a length does not divide into the chunks.
    """

    lengths: tuple[int, ...]
    degree: int
    rank: int

    def __post_init__(self) -> None:
        for index, length in enumerate(self.lengths):
            if self.degree > 1 and length % (2 * self.degree):
                raise ConfigError(
                    f"request {index} has {length} tokens, which do not divide into "
                    f"2·{self.degree} chunks; pad it (planner.batch.padded)"
                )

    @property
    def qkv_format(self) -> str:
        """The layout that Megatron's attention keeps: (T, 1, heads, channels)."""
        return "sbhd"

    @property
    def tokens(self) -> int:
        """Tokens on this rank."""
        return sum(self.lengths) // self.degree

    def local(self, request: Tensor) -> Tensor:
        """Return this rank's part of one padded request, along its first dimension."""
        if self.degree == 1:
            return request
        chunks = request.chunk(2 * self.degree)
        return torch.cat((chunks[self.rank], chunks[2 * self.degree - 1 - self.rank]))

    def positions(self) -> Tensor:
        """Return the position of each local token within its request, (T,) int64."""
        parts = [self.local(torch.arange(length)) for length in self.lengths]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
