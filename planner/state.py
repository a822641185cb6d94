"""LiveState: what a process already holds; an argument, so that decisions replay."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveState:
    """What a process already holds when a call is planned.

    Parameters
    ----------
    held_tokens
        Padded tokens that the held HybridEP buffer was made for (0: none yet).
    """

    held_tokens: int = 0
