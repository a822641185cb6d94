"""The explain table: a price as text, for people."""

from typing import TYPE_CHECKING

from planner.moments import Phase
from planner.units import gib

if TYPE_CHECKING:
    from planner.price import Price


def explain(price: "Price") -> str:
    """Return the table of one rank: a line a term, a column a moment, peaks, what is left out.

    Copies stand behind each figure. Bytes are expected ones; bound and growth stand below.
    """
    moments = tuple(price.moments)
    terms = list(dict.fromkeys(line.term for line in price.lines))
    cells = {(line.term, line.moment): line for line in price.lines}
    rows = [["term", *(str(moment) for moment in moments)]]
    for term in terms:
        row = [term]
        for moment in moments:
            line = cells.get((term, moment))
            row.append("" if line is None else f"{gib(line.expected)} ({line.copies:g})")
        rows.append(row)
    rows.append(["expected", *(gib(price.moments[m].expected) for m in moments)])
    rows.append(["bound", *(gib(price.moments[m].bound) for m in moments)])
    if any(price.moments[m].layer for m in moments):
        rows.append(["at layer", *(str(price.moments[m].layer) for m in moments)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    lines.insert(len(terms) + 2, "-" * len(lines[0]))
    return "\n".join([_head(price), *lines, *_tail(price)])


def _head(price: "Price") -> str:
    rows = price.routed_rows
    spread = f"{min(rows)}" if min(rows) == max(rows) else f"{min(rows)} to {max(rows)}"
    return (
        f"rank {price.rank}, table {price.coefficients}: {price.local_tokens} local tokens, "
        f"{spread} routed rows a layer; bytes (copies)"
    )


def _tail(price: "Price") -> list[str]:
    phases = [Phase.FORWARD] if price.forward_only else [Phase.FORWARD, Phase.BACKWARD]
    bounds = ", ".join(f"{phase} {gib(price.peak(phase)[1])}" for phase in phases)
    lines = [
        f"peak inside PyTorch  {gib(price.expected_bytes)} expected at {price.peak_moment}, "
        f"{gib(price.bound_bytes)} bound",
        f"outside PyTorch      {gib(price.growth_bytes)} buffer growth"
        + (f" (buffer of {price.buffer_tokens} tokens a rank)" if price.buffer_tokens else ""),
        f"to admit             {gib(price.demand_bytes)} "
        f"({bounds}, growth {gib(price.growth_bound_bytes)})",
        f"kept                 {gib(price.retained_bytes)} after forward, "
        f"{gib(price.left_over_bytes)} after the call",
    ]
    if price.figures.call_bytes:
        lines.append(
            f"in the bound         {gib(price.figures.call_bytes)} for what no term explains"
        )
    if price.unpriced:
        lines.append("unpriced")
        lines.extend(f"  {part}" for part in price.unpriced)
    return lines
