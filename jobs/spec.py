"""CellSpec: all that a cell of a sweep must run, as JSON. Standard library and planner only.

Spec in, record out: ``python -m jobs.rank SPEC OUT`` runs any cell again by hand. The key of a cell
is a hash of what decides its result; labels and places on this machine are left out of it.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from jobs.cell_parts import Calls, Meter, Weights, Workload
from planner.batch import lay_out
from planner.coefficients import table_digest
from planner.errors import ConfigError, require_choice
from planner.mixers import LatentAttention, LinearAttention
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

__all__ = ["BACKENDS", "Calls", "CellSpec", "Meter", "Weights", "Workload", "build"]

T = TypeVar("T")

CAME_LATER = (
    ("step", "engine", "own"),
    ("workload", "gradients", True),
    ("model", "rotary_channels", None),
    ("model", "rotary_base", 1_000_000),
)
"""Fields that came after records did, and values for which a cell keeps the key of before."""

SCHEMA = 1
BACKENDS = ("cpu", "fake", "cuda")
"""Real ranks over gloo; one process for each rank asked for, under fake tensors; real ranks on CUDA
devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSpec:
    """One cell of a sweep. ``topology_name`` is a label; every other field is part of the key.

    ``coefficients_digest`` is the hash of the table as it was when the cell was made.
    """

    model: Model
    topology: Topology
    topology_name: str
    step: Step
    weights: Weights
    workload: Workload
    calls: Calls
    meter: Meter = field(default_factory=Meter)
    backend: str = "cpu"
    coefficients: str = "megatron-local"
    coefficients_digest: str = ""
    schema: int = SCHEMA
    _key: str = field(default="", init=False, repr=False, compare=False)  # once it was asked for

    def __post_init__(self) -> None:
        if not self.coefficients_digest:  # pinned here: a table edited meanwhile is another cell's
            digest = table_digest(self.coefficients)
            object.__setattr__(self, "coefficients_digest", digest)
        require_choice("CellSpec", "backend", self.backend, BACKENDS)
        self._require_backend()
        if self.schema != SCHEMA:
            raise ConfigError(
                f"CellSpec.schema is {self.schema}, this version reads {SCHEMA}; "
                "make the spec again with this version"
            )

    def _require_backend(self) -> None:
        """Check that each backend is asked for what it can do."""
        if self.step.compiled and self.backend != "cuda":
            raise ConfigError(
                "step.compiled hides operators from the ledger, which is what observes on "
                f"backend = {self.backend}; compile on CUDA devices, and see what compiling leaves "
                "to the collector with docs/experiments/compile_garbage.py"
            )
        if self.step.engine == "te" and self.backend != "cuda":
            raise ConfigError(
                "step.engine = te is Transformer Engine's layers, which run on CUDA devices alone; "
                f"use meter=cuda, or set step.engine=own (backend = {self.backend})"
            )
        if self.backend == "fake":
            beyond = [rank for rank in self.meter.ranks or () if rank >= self.topology.world]
            if beyond:
                raise ConfigError(
                    f"meter.ranks names rank {beyond[0]}; {self.topology_name} has ranks 0 to "
                    f"{self.topology.world - 1}"
                )
            lay_out(self.workload.batch(), self.topology)  # raises where rank_tokens do not fit
            return
        if self.meter.snapshot and self.backend != "cuda":
            raise ConfigError(
                f"meter.snapshot keeps the history of a CUDA allocator; use meter=cuda "
                f"(backend = {self.backend})"
            )
        for wanted, what in (
            (self.weights.routing == "skewed", "weights.routing = skewed"),
            (bool(self.workload.rank_tokens), "workload.rank_tokens"),
            (self.meter.ranks is not None, "meter.ranks"),
        ):
            if wanted:
                raise ConfigError(
                    f"{what} is a plan that real ranks cannot follow; use meter=fake "
                    f"(backend = {self.backend})"
                )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that run and leave records, one process each."""
        if self.backend != "fake":
            return tuple(range(self.topology.world))
        if self.meter.ranks is not None:
            return self.meter.ranks
        layout = lay_out(self.workload.batch(), self.topology)
        held = [layout.tokens_of(rank, self.topology) for rank in range(self.topology.world)]
        return tuple(sorted({0, held.index(max(held))}))

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits that name this cell's result.

        The content of the coefficient table is part of it: another price is another result.
        """
        if not self._key:
            identity = self.to_dict()
            del identity["topology_name"]
            del identity["weights"]["path"]
            del identity["meter"]["profile"]
            for part, name, value in CAME_LATER:
                if identity[part][name] == value:
                    del identity[part][name]
            text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            object.__setattr__(self, "_key", key)
        return self._key

    @property
    def label(self) -> str:
        """What people call the cell: topology, weights, what it leaves out, calls."""
        left_out = "" if self.workload.gradients else "forward-only "
        return f"{self.topology_name} {self.weights.name} {left_out}{self.calls.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = asdict(self)
        del values["_key"]
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    def write(self, path: Path) -> None:
        """Write the spec as JSON, atomically."""
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n")
        scratch.replace(path)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CellSpec":
        """Build a spec from JSON values.

        Raises
        ------
        ConfigError
            For an unknown or missing key or a value of the wrong kind, naming it.
        """
        parts = dict(data)
        for name, kind in (
            ("topology", Topology),
            ("step", Step),
            ("weights", Weights),
            ("workload", Workload),
            ("calls", Calls),
            ("meter", Meter),
        ):
            if name in parts:
                parts[name] = build(kind, parts[name], name)
        if "model" in parts:
            parts["model"] = read_model(parts["model"], "model")
        return build(cls, parts, "cell")

    @classmethod
    def read(cls, path: Path) -> "CellSpec":
        """Read a spec file; raises `ConfigError` naming the file when it is no spec."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except (json.JSONDecodeError, UnicodeDecodeError, ConfigError, TypeError) as error:
            raise ConfigError(f"{path} is not a cell spec: {error}") from error


def read_model(values: object, where: str) -> Model:
    """Make a model from JSON values; raises as `build` does."""
    parts = dict(values) if isinstance(values, dict) else values
    if isinstance(parts, dict):
        for name, kind in (
            ("linear_attention", LinearAttention),
            ("latent_attention", LatentAttention),
        ):
            if parts.get(name) is not None:
                parts[name] = build(kind, parts[name], f"{where}.{name}")
    return build(Model, parts, where)


def build(kind: type[T], values: object, where: str) -> T:
    """Make a dataclass from a mapping whose keys are its fields.

    Raises
    ------
    ConfigError
        For values that are no mapping, and for unknown or missing keys, listing those that exist.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a mapping; got {values!r}")
    known = {f.name for f in fields(kind) if f.init}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(
            f"{where} has unknown key {', '.join(map(repr, unknown))}; "
            f"known: {', '.join(sorted(known))}"
        )
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error
