"""The catalogue of terms as Markdown: ``python -m planner.catalogue > docs/terms.md``.

Written from the declarations and the shipped tables, so that it cannot differ from what is priced;
`make check` compares the committed page with it.
"""

import sys

from planner.coefficients import MILLI, Coefficients, Copies, shipped_tables
from planner.moments import Moment
from planner.terms import TERMS


def catalogue() -> str:
    """Return the page."""
    tables = [Coefficients.load(name) for name in shipped_tables()]
    lines = [
        "# Priced terms",
        "",
        "Written by `python -m planner.catalogue`; change the declarations in `planner/terms/` and",
        "the tables in `planner/tables/`, not this page.",
        "",
        "## What one copy is",
        "",
        "| term | what | one copy | source |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{t.name}` | {t.what} | {t.shape} | {t.source} |" for t in TERMS]
    lines += ["", "## When it is live", "", "| moment | where |", "|---|---|"]
    lines += [f"| `{moment}` | {moment.where} |" for moment in Moment]
    for table in tables:
        lines += _table(table)
    return "\n".join(lines) + "\n"


def _table(table: Coefficients) -> list[str]:
    factors = (
        f"Bound: x {table.margin_milli / MILLI:g} inside PyTorch, "
        f"x {table.growth_margin_milli / MILLI:g} on growth; routed rows x "
        f"{table.allowance.balanced:g} where routing is unknown, x {table.allowance.measured:g} "
        "where it was measured."
    )
    lines = ["", f"## Copies in `{table.name}` ({table.date})", "", table.what, "", factors, ""]
    lines += ["| term | where | live copies | source |", "|---|---|---|---|"]
    lines += [_copies(entry) for entry in table.copies]
    if table.notes:
        lines += ["", "Unpriced:", ""]
        lines += [f"- {note}" for note, _ in table.notes]
    return lines


def _copies(entry: Copies) -> str:
    live = ", ".join(f"{moment} {copies / MILLI:g}" for moment, copies in entry.at.items())
    where = "; ".join(
        f"{fact} {' or '.join(str(value) for value in values)}" for fact, values in entry.when.facts
    )
    return f"| `{entry.term}` | {where or 'everywhere'} | {live or 'none'} | {entry.source} |"


if __name__ == "__main__":
    sys.stdout.write(catalogue())
