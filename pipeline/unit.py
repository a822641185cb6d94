"""The unit that a table or a page shows bytes in: one for all of its sizes."""

from collections.abc import Iterable
from dataclasses import dataclass

from planner.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of bytes, and the decimals that sizes are shown with in it."""

    name: str
    bytes: int
    decimals: int

    def show(self, size: int | None) -> str:
        """Show bytes in this unit, which is not named; nothing where there is no figure."""
        if size is None:
            return ""
        return f"{size / self.bytes:,.{self.decimals}f}" if size else "0"


IN_MIB = Unit("MiB", MIB, 2)
IN_GIB = Unit("GiB", GIB, 3)


def unit_of_all(sizes: Iterable[int | None]) -> Unit:
    """Return GiB where each of ``sizes`` has at least one, so that none loses its digits, else MiB.

    Sizes that are zero or unknown count for nothing.
    """
    return IN_GIB if min((size for size in sizes if size), default=0) >= GIB else IN_MIB
