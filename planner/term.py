"""Term: one priced kind of bytes, declared once.

The declaration says what the bytes are, when they exist at all, how one copy grows, and where
that is known from. How many copies are live at which moment is data: `planner.coefficients`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from planner.local import Local
from planner.size import Size

SizeOf = Callable[[Local], Size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """A named kind of bytes on one rank.

    Parameters
    ----------
    name
        ``family.thing``: the key in tables, records, reports and golden files.
    what
        What the bytes are, for a reader of the explain table.
    when
        Whether this rank has such bytes at all.
    size
        Bytes of one copy per unit of each quantity.
    persists
        Whether a split child keeps them until its backward, beside its siblings'.
    source
        Where the shape is known from.
    """

    name: str
    what: str
    when: Callable[[Local], bool]
    size: SizeOf
    persists: bool
    source: str

    @property
    def family(self) -> str:
        """The part of the step, before the dot."""
        return self.name.partition(".")[0]

    @property
    def shape(self) -> str:
        """The formula in words, from the declaration's docstring."""
        return (self.size.__doc__ or "").strip()


def term(
    name: str,
    *,
    what: str,
    source: str,
    when: Callable[[Local], bool] = lambda local: True,  # noqa: ARG005
    persists: bool = False,
) -> Callable[[SizeOf], Term]:
    """Declare a term: the decorated function gives the size of one copy."""

    def declare(size: SizeOf) -> Term:
        return Term(name=name, what=what, when=when, size=size, persists=persists, source=source)

    return declare
