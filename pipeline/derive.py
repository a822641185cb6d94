"""Copy counts from traces: live bytes of a term over the bytes of one copy, the same at every size.

A trace says how many bytes of each term were live at each moment; the term's declaration says what
one copy takes at that size. Their ratio must be one number at all sizes, else the declaration is
wrong. Where the ledger sees two terms as one (`MERGED`), the second is taken as the given table has
it and the first is solved for.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jobs.routing_file import routing_of
from jobs.spec import CellSpec
from planner.batch import lay_out
from planner.coefficients import MILLI, Coefficients
from planner.compiled import compile_terms
from planner.facts import FACTS
from planner.fullest import may_be_fullest
from planner.local import Local
from planner.moments import Moment
from planner.pricer import compile_pricer
from planner.size import units
from planner.term import Term
from planner.terms import TERMS

MERGED = {
    "residual.stream": ("router.input_gradient",),
    "router.scores": ("router.gate_gradient", "router.score_gradient"),
    "adapters.gradients": ("adapters.layer_gradients",),
    "experts.dispatched_inputs": ("dispatch.returned",),
}
"""Terms that the ledger counts under another's name, where their tensors look alike."""

SAME = 0.02
"""What rounding to blocks, whole rows and bounds in a declaration may make of a ratio."""

TELLING = ("dispatcher", "cp", "ep", "shared_gate", "linear_attention")
"""Facts that may tell classes of traces apart, most telling first."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One trace: the rank, and observed bytes and bytes of one copy, by moment and term."""

    local: Local
    observed: Mapping[Moment, Mapping[str, int]]
    unit: Mapping[Moment, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One term at one moment in one class: copies at each size, and what the given table has."""

    moment: Moment
    term: str
    ratios: tuple[float, ...]
    given: float

    @property
    def scales(self) -> bool:
        """Whether the term grows with the size as its declaration says."""
        low, high = min(self.ratios), max(self.ratios)
        return math.isfinite(high) and high - low <= SAME * max(high, 1.0)

    @property
    def agrees(self) -> bool:
        """Whether the given table has these copies."""
        return all(abs(ratio - self.given) <= SAME * max(self.given, 1.0) for ratio in self.ratios)

    @property
    def copies(self) -> float:
        """The one figure for all sizes; the given one where no single figure is right."""
        if self.agrees or not self.scales:
            return self.given
        return round(sum(self.ratios) / len(self.ratios), 2)


def sample_of(trace: Mapping[str, Any]) -> Sample:
    """Read one trace of `jobs.trace` and size the terms of its rank."""
    spec = CellSpec.from_dict(trace["spec"])
    pricer = compile_pricer(
        spec.model,
        spec.topology,
        spec.step,
        coefficients=spec.coefficients,
        routing=routing_of(spec),
    )
    layout = lay_out(spec.workload.batch(), spec.topology)
    figures = pricer.figures(layout)[trace["rank"]]
    work, local = figures.work, figures.compiled.local
    here = [term for term in TERMS if term.when(local)]
    observed, unit = {}, {}
    for name, seen in trace["moments"].items():
        quantities = work.at(seen["layer"], work.rows)
        moment = Moment(name)
        observed[moment] = dict(seen["terms"])
        unit[moment] = {
            term.name: sum(
                size * quantities[place] for place, size in units(term.size(local), moment)
            )
            for term in here
        }
    return Sample(local, observed, unit)


def findings(samples: Sequence[Sample], table: Coefficients) -> list[Finding]:
    """Solve one class of traces, two sizes or more, for the copies of every term."""
    given = _copies_of(table, samples[0].local)
    found = []
    for moment in samples[0].observed:
        if not may_be_fullest(moment, samples[0].local):
            continue
        for name in samples[0].unit[moment]:
            if any(name in second for second in MERGED.values()):
                continue
            ratios = [_ratio(sample, moment, name, given) for sample in samples]
            known = tuple(ratio for ratio in ratios if ratio is not None)
            if len(known) == len(ratios):  # else the layer at hand has none of it to learn from
                found.append(Finding(moment, name, known, given.get((name, moment), 0.0)))
    return found


def _ratio(
    sample: Sample, moment: Moment, name: str, given: Mapping[tuple[str, Moment], float]
) -> float | None:
    units = sample.unit[moment]
    seen = sample.observed[moment].get(name, 0) - sum(
        given.get((second, moment), 0.0) * units.get(second, 0) for second in MERGED.get(name, ())
    )
    if units[name]:
        return seen / units[name]
    return math.inf if seen else None  # live where the declaration says that nothing can be


def _copies_of(table: Coefficients, local: Local) -> dict[tuple[str, Moment], float]:
    return {
        (live.term.name, stage.moment): live.copies_milli / MILLI
        for stage in compile_terms(local, table).stages
        for live in stage.live
    }


def text_of(table: str) -> str:
    """Return the TOML of a table, shipped or by its path."""
    if table.endswith(".toml"):
        return Path(table).read_text(encoding="utf-8")
    return (resources.files("planner.tables") / f"{table}.toml").read_text(encoding="utf-8")


def table_text(
    classes: Sequence[tuple[Sample, Sequence[Finding]]],
    table: Coefficients,
    given_text: str,
    *,
    name: str,
    date: str,
) -> str:
    """Return a coefficient table: the given one's rules, with the copies that were traced.

    Where classes have the same copies of a term there is one entry, else one for each class, told
    apart by the first fact that can. What the given table says of calls without gradients stays.
    """
    head = given_text[: given_text.index("[[copies]]")]
    parts = given_text.split("\n\n")
    rest = [part for part in parts if part.lstrip().startswith("[[unpriced]]")]
    lines = [_renamed(head, name, date)]
    traced = [
        (sample.local, {f.moment: f for f in found if f.term == term.name})
        for term in TERMS
        for sample, found in classes
    ]
    for index, term in enumerate(TERMS):
        of_term = traced[index * len(classes) : (index + 1) * len(classes)]
        without = [p for p in parts if f'"{term.name}"' in p and "gradients = [false]" in p]
        only = "gradients = [true]" if without else ""
        lines += [*_entries(term, of_term, table, only), *without]
    return "\n\n".join([*lines, *rest]) + "\n"


def _renamed(head: str, name: str, date: str) -> str:
    kept = [
        line
        for line in head.splitlines()
        if not line.startswith(("name =", "date =", "#")) and line.strip()
    ]
    return f'name = "{name}"\ndate = {date}\n' + "\n".join(
        f"\n{line}" if line.startswith("[") else line for line in kept
    )


def _entries(
    term: Term,
    traced: Iterable[tuple[Local, Mapping[Moment, Finding]]],
    table: Coefficients,
    only: str,
) -> list[str]:
    """Return the entries of a term; ``only`` is a condition that all of them share."""
    groups: list[tuple[dict[str, float], list[Local]]] = []
    for local, found in traced:
        if not term.when(local):
            continue
        at = {str(m): f.copies for m, f in found.items() if f.copies} | _not_looked_at(
            term, local, table
        )
        if not found:  # seen under another term's name: as the given table has it
            at = {
                str(moment): copies
                for (name, moment), copies in _copies_of(table, local).items()
                if name == term.name
            }
        for known, locals_ in groups:
            if known == at:
                locals_.append(local)
                break
        else:
            groups.append((at, [local]))
    return [_entry(term, at, (_when(index, groups), only)) for index, (at, _) in enumerate(groups)]


def _not_looked_at(term: Term, local: Local, table: Coefficients) -> dict[str, float]:
    """Return copies at moments that such a rank does not price: as the given table has them."""
    return {
        str(moment): copies / MILLI
        for entry in table.copies
        if entry.term == term.name and entry.when.mismatch(local) is None
        for moment, copies in entry.at.items()
        if not may_be_fullest(moment, local)
    }


def _when(index: int, groups: Sequence[tuple[dict[str, float], list[Local]]]) -> str:
    """Return the condition that holds for one group of classes and for no other."""
    if len(groups) == 1:
        return ""  # also what is seen in some classes only: elsewhere the term does not exist
    for fact in TELLING:
        values = [{FACTS[fact](local) for local in locals_} for _, locals_ in groups]
        if sum(map(len, values)) == len(set().union(*values)):
            listed = ", ".join(_toml(value) for value in sorted(values[index], key=str))
            return f"{fact} = [{listed}]"
    raise ValueError(f"no fact of {', '.join(TELLING)} tells the traced classes apart")


def _toml(value: object) -> str:
    return json.dumps(value)  # text, whole numbers and truth values read the same in TOML


def _entry(term: Term, at: Mapping[str, float], conditions: Iterable[str]) -> str:
    facts = ", ".join(filter(None, conditions))
    when = f"when = {{ {facts} }}\n" if facts else ""
    copies = ", ".join(f"{moment} = {number:g}" for moment, number in at.items())
    return f'[[copies]]\nterm = "{term.name}"\n{when}at = {{ {copies} }}\nsource = "trace"'
