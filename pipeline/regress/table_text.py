"""Table text: a coefficient table as the TOML that `planner.coefficients` reads back."""

import json
from collections.abc import Mapping, Sequence

from planner.coefficients import MILLI, Coefficients, Copies

Sources = Mapping[str, str]
"""Source of each section of figures: bound, rows, buffers, split, copies."""


def table_text(table: Coefficients, *, sources: Sources, fitted: Sequence[bool]) -> str:
    """Return a table as TOML.

    Parameters
    ----------
    sources
        Where the figures of ``bound``, ``rows``, ``buffers`` and ``split`` are from, and, under
        ``copies``, what is added to the source of an entry that was fitted.
    fitted
        For each entry whether it was.
    """
    allowance, buffers = table.allowance, table.buffers
    parts = [
        f"name = {_text(table.name)}",
        f"date = {table.date.isoformat()}",
        f"what = {_text(table.what)}",
        f"elsewhere = {json.dumps(list(table.elsewhere))}",
        "",
        "[bound]",
        f"margin = {table.margin_milli / MILLI:g}",
        f"growth_margin = {table.growth_margin_milli / MILLI:g}",
        f"call_bytes = {table.call_bytes}",
        f"source = {_text(sources['bound'])}",
        "",
        "[rows]",
        f"balanced = {allowance.balanced:g}",
        f"measured = {allowance.measured:g}",
        f"source = {_text(sources['rows'])}",
        "",
        "[buffers]",
        f"reserve = {_text(buffers.reserve)}",
        f"replace = {_text(buffers.replace)}",
        f"source = {_text(sources['buffers'])}",
        "",
        "[split]",
        f"together = {_value(table.children_together)}",
        f"source = {_text(sources['split'])}",
        "",
    ]
    for entry, was_fitted in zip(table.copies, fitted, strict=True):
        source = entry.source + (f"; {sources['copies']}" if was_fitted else "")
        parts += _entry(entry, source)
    for note, when in table.notes:
        parts += ["[[unpriced]]", f"what = {_text(note.what)}", f"why = {_text(note.why)}"]
        parts += [f"when = {_facts(when.facts)}"] if when.facts else []
        parts.append("")
    return "\n".join(parts)


def _entry(entry: Copies, source: str) -> list[str]:
    at = ", ".join(f"{moment} = {milli / MILLI:g}" for moment, milli in entry.at.items())
    lines = ["[[copies]]", f"term = {_text(entry.term)}"]
    if entry.when.facts:
        lines.append(f"when = {_facts(entry.when.facts)}")
    lines.append(f"at = {{ {at} }}")
    if entry.interval:
        ends = ", ".join(
            f"{moment} = [{low:g}, {high:g}]" for moment, (low, high) in entry.interval.items()
        )
        lines.append(f"interval = {{ {ends} }}")
    return [*lines, f"source = {_text(source)}", ""]


def _facts(facts: Sequence[tuple[str, tuple[object, ...]]]) -> str:
    inside = ", ".join(f"{fact} = [{', '.join(map(_value, of))}]" for fact, of in facts)
    return f"{{ {inside} }}"


def _value(value: object) -> str:
    return json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
