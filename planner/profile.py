"""Profile: what the calls of a process have shown about the planner's own error.

Kept as observed over expected, not as bytes a token: the expected figure already knows what does
not grow with tokens, so that a tiny warm-up call cannot inflate a large one. Each size of call
(a power of two of expected bytes) keeps its own worst, so that neither hides the other.
"""

from dataclasses import dataclass

from planner.units import Bytes

BANDS = 28
LEAST_BITS = 17
"""Bands are powers of two of expected bytes, from 128 KiB to 16 TiB; beyond lie the outer ones."""

TRUSTED = 8
"""A call teaches about calls less than eight times its size, either way (domain A.2)."""

REACH = 2
"""The same in bands: up to two away."""

MILLI = 1000

Ratios = tuple[int, ...]
NONE: Ratios = (0,) * BANDS


def band_of(expected: int) -> int:
    """Return the band of a call of this expected size."""
    return min(max(expected.bit_length() - LEAST_BITS, 0), BANDS - 1)


@dataclass(frozen=True, slots=True)
class Profile:
    """The worst seen on one rank.

    Parameters
    ----------
    peaks, retained
        For each band of expected peak bytes, the highest observed over expected peak, and retained,
        in thousandths, rounded up (0: nothing seen).
    """

    peaks: Ratios = NONE
    retained: Ratios = NONE

    def learn(
        self, expected: int, observed: int, expected_retained: int = 0, retained: int = 0
    ) -> "Profile":
        """Return the profile after a call that peaked at ``observed`` bytes.

        Parameters
        ----------
        expected, expected_retained
            What the plan said of its peak, and of what it holds once forward has returned.
        """
        if expected <= 0:
            return self
        band = band_of(expected)
        peaks = _raise(self.peaks, band, observed, expected)
        kept = self.retained
        if expected_retained > 0:
            kept = _raise(kept, band, retained, expected_retained)
        return Profile(peaks, kept)

    def merge(self, other: "Profile") -> "Profile":
        """Return the worst of both."""
        return Profile(
            tuple(map(max, self.peaks, other.peaks)), tuple(map(max, self.retained, other.retained))
        )

    def floor(self, expected: int) -> Bytes:
        """Return the least to give the peak of a call of this size; 0: nothing near was seen."""
        return Bytes(-(-expected * _near(self.peaks, expected) // MILLI))

    def retained_floor(self, expected: int, expected_retained: int) -> Bytes:
        """Return the least that such a call keeps after forward, by the rate of its own."""
        return Bytes(-(-expected_retained * _near(self.retained, expected) // MILLI))

    def to_ints(self) -> tuple[int, ...]:
        """Return the profile as a row of ``2 x BANDS`` integers, for ranks to exchange."""
        return self.peaks + self.retained

    @classmethod
    def from_ints(cls, figures: tuple[int, ...] | list[int]) -> "Profile":
        """Return the profile of a row of integers."""
        return cls(tuple(figures[:BANDS]), tuple(figures[BANDS : 2 * BANDS]))


def _raise(ratios: Ratios, band: int, observed: int, expected: int) -> Ratios:
    ratio = -(-observed * MILLI // expected)
    return ratios if ratio <= ratios[band] else (*ratios[:band], ratio, *ratios[band + 1 :])


def _near(ratios: Ratios, expected: int) -> int:
    band = band_of(expected)
    return max(ratios[max(0, band - REACH) : band + REACH + 1])
