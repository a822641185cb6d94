"""Observations: sightings from a table of measured cells or from a sweep's records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.measured import candidate_cells, read_measured
from pipeline.recorded import read_recorded
from pipeline.regress.copies import Arguments
from pipeline.regress.propose import propose
from pipeline.regress.sighting import Sighting, Sightings, gather, join, select
from pipeline.regress.solve import FitError
from planner.coefficients import Coefficients
from planner.compiled import TermCompiler
from planner.errors import ConfigError

CELLS_PRIOR = "nonfull-derived"
LEDGER_FLOOR = 4096.0
"""Bytes of noise of a ledger on CPU ranks: small tensors that no term prices."""
CELLS_SOURCES = {
    "bound": "fitted: worst shortfall of large calls, also held out, and half the noise of a peak; "
    "bytes for what small calls showed beyond",
    "rows": "as the measured cells state their routing",
    "buffers": "as the prior",
    "split": "as the prior",
    "copies": "fitted",
}
RECORDS_SOURCES = {
    **CELLS_SOURCES,
    "rows": "balanced as the prior; measured: fitted, a conformal factor on arrived over expected",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Observations:
    """What a fit takes.

    Parameters
    ----------
    candidates
        Cells that could be added, by label.
    prior
        Name of the table where a fit on these begins.
    arguments
        How firmly it holds to that table, and how noisy these are: a ledger counts to the byte, a
        GPU's allocator rounds.
    """

    sightings: Sightings
    candidates: Mapping[str, Sighting]
    prior: str
    arguments: Arguments
    excluded: Sequence[str]
    faults: Sequence[str]
    sources: Mapping[str, str]

    def under(self, name: str) -> "Observations":
        """Return what a table prices whole; the others are left out with the reason.

        A study may hold cells of several execution classes, each of a table of its own.

        Raises
        ------
        FitError
            Where nothing was measured, or the table prices none of it.
        """
        compiler = TermCompiler(Coefficients.load(name))
        whole: list[bool] = []
        calls: Counter[str] = Counter()
        for place, kind in enumerate(self.sightings.kinds):
            compiled = compiler.compile(kind.local)
            whole.append(not compiled.unpriced_parts)
            if compiled.unpriced_parts:
                facts = dict(kind.facts)
                label = f"{facts.get('model', '')} {facts.get('topology', '')}".strip()
                count = int((self.sightings.kind == place).sum())
                calls[f"{label}: {compiled.unpriced[0]}"] += count
        reasons = [f"{reason} ({count} records)" for reason, count in calls.items()]
        if not len(self.sightings):
            raise FitError(f"nothing was measured: {'; '.join([*self.excluded, *self.faults][:3])}")
        if not any(whole):
            raise FitError(f"{name} prices none of {len(self.sightings)} calls: {reasons[0]}")
        if all(whole):
            return self
        places = np.flatnonzero(np.array(whole)[self.sightings.kind])
        return replace(
            self,
            sightings=select(self.sightings, places),
            excluded=[*self.excluded, *reasons],
        )

    def proposals(self, groups: Sequence[Sequence[str]]) -> list[str]:
        """Return, for coefficients that are not told apart, what a next sweep would vary."""
        table = Coefficients.load(self.prior)
        best = propose(self.sightings, self.candidates, table) if groups else []
        lines = [f"next sweep: add {label}" for label in best]
        for fact, way in () if best else WAYS.items():
            names = self.sightings.fact(fact).names
            if groups and len(names) == 1:
                lines.append(f"next sweep: all of these have {fact} {names[0]}; {way}")
        return lines


WAYS = {
    "model": "add a model whose widths have other ratios",
    "size": "add a call of twice the tokens",
    "topology": "add a topology with another cp and ep",
    "lora rank": "add a sweep with another LoRA rank (step.lora_rank=16)",
}
"""What to vary where a fact has one kind only, which leaves its columns in proportion."""


def read_observations(*paths: Path) -> Observations:
    """Read a CSV of measured cells, or the records under the folders of one sweep or several.

    Raises
    ------
    PlannerError
        Where there is nothing to read, or both kinds are given; see `read_measured` and
        `read_recorded`.
    """
    folders = [path for path in paths if path.is_dir()]
    if (folders and len(folders) < len(paths)) or (not folders and len(paths) > 1):
        raise ConfigError("give one table of measured cells, or folders of sweeps; not both")
    return _of_records(folders) if folders else _of_cells(paths[0])


def _of_records(folders: Sequence[Path]) -> Observations:
    """Join several sweeps; imported cells are fitted as those of the table they are from."""
    recorded = [read_recorded(folder) for folder in folders]
    sightings = join([one.sightings for one in recorded])
    published = sightings.fact("table").names == ("",)  # no planner was asked where they ran
    ledger = Arguments(strength=0.0, floor_bytes=LEDGER_FLOOR)
    return Observations(
        sightings=sightings,
        candidates={label: cell for one in recorded for label, cell in one.candidates.items()},
        prior=CELLS_PRIOR if published else recorded[0].coefficients,
        arguments=Arguments() if published else ledger,
        excluded=[reason for one in recorded for reason in one.excluded],
        faults=[fault for one in recorded for fault in one.faults],
        sources=CELLS_SOURCES if published else RECORDS_SOURCES,
    )


def _of_cells(path: Path) -> Observations:
    measured = read_measured(path)
    return Observations(
        sightings=gather([cell.sighting for cell in measured.cells]),
        candidates=candidate_cells(measured),
        prior=CELLS_PRIOR,
        arguments=Arguments(),
        excluded=measured.excluded,
        faults=measured.faults,
        sources=CELLS_SOURCES,
    )
