"""Measured records: rows of a published table as specs and records of a sweep's folder.

A row states the fullest rank of its cell, busiest where shards differ, so that one record, under
rank 0, is all of it. What a row does not say is 0 in the record: growth, what was held over, terms.
The row itself lies in the record's environment as it was published, so that a fit reads the same
figures from it. A row's specification says what ran; where several rows share one (other rows per
rank, other routing), each is a cell of its own by the name of its workload.
"""

from pathlib import Path

from jobs.cell_parts import Calls, Weights, Workload
from jobs.record import Observed, Planned, RankRecord, record_path, write_records
from jobs.spec import CellSpec
from pipeline.measured import Measured, MeasuredCell
from pipeline.store import PUBLISHED
from planner.coefficients import Coefficients
from planner.compiled import TermCompiler
from planner.figures import Figures
from planner.loads import NO_GROWTH
from planner.moments import Phase
from planner.price import Price

ONE = Calls(name="cold", warmup=0, measured=1)
NEAR_BALANCED = Weights(name="published")


def write_measured(measured: Measured, out: Path, coefficients: str) -> int:
    """Write the cells of a table under ``out``, priced by a table; return how many.

    Raises
    ------
    TableError
        Where the table cannot be read.
    """
    table = Coefficients.load(coefficients)
    compiler = TermCompiler(table)
    (out / "specs").mkdir(parents=True, exist_ok=True)
    for cell in measured.cells:
        spec = _spec(cell, coefficients)
        sighting = cell.sighting
        work = sighting.work
        figures = Figures(
            compiler.compile(sighting.local), work, table.margin_milli, NO_GROWTH, table.call_bytes
        )
        spec.write(out / "specs" / f"{spec.key}.json")
        record = RankRecord(
            key=spec.key,
            label=cell.label,
            attempt=0,
            rank=0,
            call=0,
            temperature="cold",
            outcome="ok",
            planned=_planned(Price(0, table.name, figures)),
            observed=_observed(cell),
            environment={PUBLISHED: dict(cell.row)},
        )
        write_records(record_path(out, spec.key, 0, 0), [record])
    return len(measured.cells)


def _spec(cell: MeasuredCell, coefficients: str) -> CellSpec:
    axes = cell.topology
    return CellSpec(
        model=cell.model,
        topology=axes,
        topology_name=f"tp{axes.tp}_cp{axes.cp}_ep{axes.ep}",
        step=cell.step,
        weights=NEAR_BALANCED,
        workload=Workload(
            name=cell.label.replace(" ", "_"),
            requests=(cell.sighting.work.tokens * axes.cp,),
        ),
        calls=ONE,
        backend="cuda",
        coefficients=coefficients,
    )


def _planned(price: Price) -> Planned:
    return Planned(
        expected_bytes=price.expected_bytes,
        bound_bytes=price.bound_bytes,
        growth_bytes=0,
        retained_bytes=price.retained_bytes,
        held_over_bytes=0,
        demand_bytes=price.demand_bytes,
        decision={"verdict": "admit", "children": 1},
        peak_moment=str(price.peak_moment),
        terms={name: int(size) for name, size in price.terms.items()},
        moments={
            str(moment): {"expected": figure.expected, "bound": figure.bound}
            for moment, figure in price.moments.items()
        },
        unpriced=[str(part) for part in price.unpriced],
        coefficients=price.coefficients,
        local_tokens=price.local_tokens,
        routed_rows=[int(rows) for rows in price.routed_rows],
    )


def _observed(cell: MeasuredCell) -> Observed:
    seen = cell.sighting.seen
    return Observed(
        baseline_bytes=0,
        peak_bytes=seen[None],
        working_set_bytes=seen[None],
        retained_bytes=seen.get(Phase.RETAINED, 0),
        held_over_bytes=0,
        growth_bytes=0,
        outside_bytes=0,
        terms={},
        unattributed_bytes=seen[None],
        peak_at={},
        routed_rows=[],
        call_s=0.0,
        ledger_s=0.0,
    )
