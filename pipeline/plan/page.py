"""A plan as one HTML page without anything to load: bars of every moment, and its figures."""

from html import escape

from pipeline.plan.summary import Plan, degrees
from planner.admission import Refuse, Split
from planner.moments import Moment
from planner.units import gib

COLOURS = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999"),
    *("#332288", "#882255", "#117733", "#ddcc77", "#88ccee"),
)

STYLE = """
body{font:14px system-ui,sans-serif;margin:2em;max-width:70em;color:#222}
table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{display:flex;height:1.1em;background:#eee}.bar i{display:block;height:100%}
.w{width:36em}.k{display:inline-block;width:.8em;height:.8em;margin-right:.4em}
"""


def page(plan: Plan) -> str:
    """Return the page."""
    price, pricer = plan.worst, plan.pricer
    families = {term.partition(".")[0]: None for term in (line.term for line in price.lines)}
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(families)}
    counts = pricer.model.parameters
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{escape(pricer.model.name)}: plan</title>",
        f"<style>{STYLE}</style><h1>{escape(pricer.model.name)}</h1>",
        f"<p>{counts.total:,} parameters, {counts.active:,} active; {degrees(pricer.topology)}; "
        f"{plan.batch.tokens:,} tokens; table {escape(pricer.coefficients.name)}; rank "
        f"{price.rank} needs most, with {price.local_tokens:,} tokens.</p>",
        f"<p><b>{escape(_verdict(plan))}</b></p>",
        _figures(plan),
        "<h2>Expected bytes at each moment</h2><p>",
        *(f"<i class=k style=background:{colour[n]}></i>{escape(n)} &nbsp; " for n in families),
        "</p><table>",
        *(_moment(plan, moment, colour) for moment in price.moments),
        "</table><h2>Terms at the peak</h2><table>",
        *(
            f"<tr><td>{escape(name)}<td class=n>{value:,}<td class=n>{gib(value)}"
            for name, value in sorted(price.terms.items(), key=lambda item: -item[1])
        ),
        "</table>",
        _listed("Ways out", plan.decision.ways_out if isinstance(plan.decision, Refuse) else ()),
        _listed("Unpriced", tuple(str(part) for part in price.unpriced)),
        _listed("Assumed of the model", pricer.model.assumptions),
    ]
    return "\n".join(part for part in parts if part)


def _verdict(plan: Plan) -> str:
    if isinstance(plan.decision, Refuse):
        return f"Does not fit: {plan.decision.reason}"
    if isinstance(plan.decision, Split):
        return f"Does not fit whole; fits in {len(plan.decision.children)} children"
    return "Fits"


def _figures(plan: Plan) -> str:
    price = plan.worst
    rows = (
        ("expected inside PyTorch", price.expected_bytes),
        ("bound inside PyTorch", price.bound_bytes),
        ("growth of buffers outside", price.growth_bound_bytes),
        ("retained after forward", price.retained_bound_bytes),
        ("to admit", price.demand_bytes),
        *((line.term, line.bytes) for line in plan.static.lines),
        *((f"{line.term}, at most", line.bound) for line in plan.outside.lines),
        *(() if plan.device_bytes is None else (("device", plan.device_bytes),)),
    )
    cells = (f"<tr><td>{n}<td class=n>{v:,}<td class=n>{gib(v)}" for n, v in rows)
    return f"<table>{''.join(cells)}</table>"


def _moment(plan: Plan, moment: Moment, colour: dict[str, str]) -> str:
    price = plan.worst
    widest = max(1, *(figure.expected for figure in price.moments.values()))
    families: dict[str, int] = {}
    for term, value in price.terms_at(moment).items():
        family = term.partition(".")[0]
        families[family] = families.get(family, 0) + value
    bars = "".join(
        f"<i title='{escape(name)} {gib(value)}' "
        f"style='width:{100 * value / widest:.2f}%;background:{colour[name]}'></i>"
        for name, value in families.items()
    )
    return (
        f"<tr><td title='{escape(moment.where)}'>{moment}<td class=w><div class=bar>{bars}</div>"
        f"<td class=n>{gib(price.moments[moment].expected)}"
    )


def _listed(title: str, items: tuple[str, ...]) -> str:
    if not items:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(item)}' for item in items)}</ul>"
