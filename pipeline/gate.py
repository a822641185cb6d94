"""Gate: reasons not to trust a table: a bound that did not hold, large errors, no certificate.

The bound is held against every observation given; held-out errors are the certificate's, whose
table must be the one at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from pipeline.certificate import CertificateError, certificate_path, code_digest, require_certified
from pipeline.recorded_cell import PASSED
from pipeline.regress.design import make_design
from pipeline.regress.sighting import Sightings
from planner.coefficients import MILLI, Coefficients
from planner.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of the gate: relative errors, and the cells that a certificate must rest on."""

    large_median_error: float
    large_worst_error: float
    least_cells: int

    @classmethod
    def load(cls, path: Path | None = None) -> "Limits":
        """Read limits from YAML, by default those of ``conf/gate/default.yaml``.

        Raises
        ------
        ConfigError
            Where the file cannot be read, or a limit is missing or no number.
        """
        try:
            if path is None:
                shipped = resources.files("conf") / "gate" / "default.yaml"
                text = shipped.read_text(encoding="utf-8")
            else:
                text = path.read_text(encoding="utf-8")
            values: Any = OmegaConf.to_container(OmegaConf.create(text))
            return cls(
                large_median_error=float(values["large_median_error"]),
                large_worst_error=float(values["large_worst_error"]),
                least_cells=int(values["least_cells"]),
            )
        except OSError as error:
            raise ConfigError(f"cannot read the limits {path}: {error.strerror}") from error
        except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(
                f"{path} holds no limits: {error!r}; it is YAML with numbers for "
                f"{', '.join(field.name for field in fields(cls))}"
            ) from error


def table_path(name: str) -> Path:
    """Return the file of a table, by shipped name or by path."""
    if name.endswith(".toml"):
        return Path(name)
    return Path(str(resources.files("planner.tables") / f"{name}.toml"))


def unheld(sightings: Sightings, table: Coefficients) -> list[str]:
    """Return each sighting whose observed peak lies above the bound, with both figures.

    The bound is that on the rows that arrived: what no allowance on routing should have to cover.
    """
    design = make_design(sightings, table)
    whole = design.whole
    places = design.peaks.sighting[whole]
    sizes = design.peaks.expected(design.prior)[whole]
    observed = sightings.observed[places]
    bounds = np.ceil(sizes * table.margin_milli / MILLI) + table.call_bytes
    found = [
        f"{sightings.labels[places[i]]}: observed {observed[i]:.0f} bytes, bound {bounds[i]:.0f}"
        for i in np.flatnonzero(observed > bounds)
    ]
    priced = np.isin(np.arange(len(sightings)), places)
    found += [
        f"{sightings.labels[place]}: {table.name} prices no moment of it"
        for place in np.flatnonzero(~priced)
    ]
    return found


def exceeded(sightings: Sightings, digest: str) -> list[str]:
    """Return each sighting that a table's bound, as the call was planned with it, did not hold for.

    ``digest`` is the table's: what was planned with another says nothing of it.
    """
    table = sightings.fact("table")
    if "bound" not in sightings.beside or digest not in table.names:
        return []
    bound, observed = sightings.beside["bound"].T
    over = (table.code == table.names.index(digest)) & (observed > bound)
    return [
        f"{sightings.labels[i]}: observed {observed[i]:.0f} bytes, planned bound {bound[i]:.0f}"
        for i in np.flatnonzero(over)
    ]


def ran_out(excluded: Sequence[str]) -> list[str]:
    """Return the calls left out that ran out of memory or passed their bound, though admitted."""
    return [reason for reason in excluded if "outcome oom" in reason or PASSED in reason]


def uncertified(table: Path, limits: Limits) -> list[str]:
    """Return what a table's certificate does not vouch for."""
    try:
        certificate = require_certified(table)
    except (CertificateError, OSError) as error:
        return [str(error)]
    found = []
    if certificate["code"]["sha256"] != code_digest():
        found.append(
            f"{certificate_path(table).name}: another version of the fit made it; fit again"
        )
    measured = certificate["sightings"]["measured"]
    if measured < limits.least_cells:
        found.append(f"it rests on {measured} measured calls, fewer than {limits.least_cells}")
    held = {n: f for n, f in certificate["errors"].items() if n.startswith("without_")}
    if not held:
        found.append("it holds no held-out error: its cells are of one model, size and topology")
    for name, figures in held.items():
        for limit in ("large_median_error", "large_worst_error"):
            value, most = figures.get(limit), getattr(limits, limit)
            if value is not None and value > most:
                found.append(f"{limit} {name.replace('_', ' ')} is {value:.4f}, above {most:g}")
    return found
