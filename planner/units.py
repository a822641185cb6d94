"""The units that flow through the planner: integers with a name, GiB only when shown."""

from typing import NewType

Bytes = NewType("Bytes", int)
"""Bytes on one rank, always an integer."""

Tokens = NewType("Tokens", int)
"""Positions of sequences on one rank, before routing."""

Rows = NewType("Rows", int)
"""Routed rows: (token, expert) pairs that arrive at one rank's experts."""

GIB = 2**30
MIB = 2**20


def ceil_div(value: int, by: int) -> int:
    """Return ``value / by`` rounded up, in integers."""
    return -(-value // by)


def align_up(value: int, to: int) -> int:
    """Return the smallest multiple of ``to`` that is at least ``value``."""
    return ceil_div(value, to) * to


def gib(value: int) -> str:
    """Show bytes in GiB (2^30), or in a smaller unit where GiB would read as zero."""
    size = abs(value)
    if size >= GIB // 10:
        return f"{value / GIB:.2f} GiB"
    if size >= MIB // 10:
        return f"{value / MIB:.2f} MiB"
    return f"{value / 1024:.1f} KiB" if size >= 1024 else f"{value} B"
