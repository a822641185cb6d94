"""Profile: what the calls of a process have shown about the planner's own error.

Kept as the highest observed over expected, not as bytes a token: the expected figure already knows
what does not grow with tokens, so that a tiny warm-up call cannot inflate a large one.
"""

from dataclasses import dataclass

from planner.units import Bytes

TRUST = 8
"""A call teaches about calls up to eight times its size, either way (domain A.2)."""

MILLI = 1000


@dataclass(frozen=True, slots=True)
class Profile:
    """The worst excess seen on one rank.

    Parameters
    ----------
    ratio_milli
        Highest observed over expected, in thousandths, rounded up (0: nothing seen).
    expected_bytes
        Expected bytes of the call that showed it.
    """

    ratio_milli: int = 0
    expected_bytes: int = 0

    def learn(self, expected: int, observed: int) -> "Profile":
        """Return the profile after a call that peaked at ``observed`` bytes."""
        if expected <= 0:
            return self
        ratio = -(-observed * MILLI // expected)
        return Profile(ratio, expected) if ratio > self.ratio_milli else self

    def floor(self, expected: int) -> Bytes:
        """Return the least to give a call of this expected size; 0 outside the trust."""
        near = self.expected_bytes <= TRUST * expected and expected <= TRUST * self.expected_bytes
        return Bytes(-(-expected * self.ratio_milli // MILLI) if near else 0)
