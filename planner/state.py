"""LiveState: what a process already holds; an argument, so that decisions replay."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveState:
    """What a process already holds when a call is planned.

    Parameters
    ----------
    held_tokens
        Padded tokens that the held HybridEP buffer was made for (0: none yet): one figure for all
        ranks, or each global rank's own.
    """

    held_tokens: int | tuple[int, ...] = 0

    def held_by(self, rank: int) -> int:
        """Return the padded tokens of the buffer that global ``rank`` holds."""
        return self.held_tokens if isinstance(self.held_tokens, int) else self.held_tokens[rank]
