"""PlanReport: one decision with all its inputs, as canonical JSON that can be priced again.

A report holds a hash of its content, so that one which was cut short or edited is told from one
that was written. Pricing again shows whether today's code and table take the same decision, and if
not, which term moved at which moment.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.admission import Decision, Refuse, Split
from planner.batch import Batch
from planner.children import Child
from planner.coefficients import Coefficients
from planner.errors import ConfigError, PlannerError
from planner.memory import MemorySample
from planner.model import Model
from planner.plain import canonical, digest, from_plain, to_plain
from planner.pricer import Pricer, compile_pricer
from planner.requests import Prefix, Request
from planner.routing import Routing
from planner.step import Step
from planner.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "peakcast.plan"
SCHEMA = 1


class ReportError(PlannerError):
    """A file that is no plan report, or not the one that was written."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """One decision and its inputs, as JSON values.

    Parameters
    ----------
    inputs
        Model, topology, step, routing, table (name and digest), batch, memory sample.
    decision
        Verdict, demand of every rank, and for each child every term at every moment on each kind of
        rank.
    """

    inputs: Mapping[str, Any]
    decision: Mapping[str, Any]

    @classmethod
    def of(
        cls, pricer: Pricer, batch: Batch, decision: Decision, *, allow_unpriced: bool = False
    ) -> "PlanReport":
        """Record a decision that ``pricer.admit`` took on ``batch``."""
        return cls(
            inputs={
                "model": to_plain(pricer.model),
                "topology": to_plain(pricer.topology),
                "step": to_plain(pricer.step),
                "routing": pricer.routing.to_plain(),
                "coefficients": {
                    "name": pricer.coefficients.name,
                    "date": pricer.coefficients.date.isoformat(),
                    "digest": digest(to_plain(pricer.coefficients)),
                },
                "batch": to_plain(batch),
                "sample": to_plain(decision.sample),
                "allow_unpriced": allow_unpriced,
            },
            decision=decision_to_plain(decision),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values with the schema version and the hash of all else."""
        content = {
            "kind": KIND,
            "schema": SCHEMA,
            "inputs": dict(self.inputs),
            "decision": dict(self.decision),
        }
        return content | {"digest": digest(content)}

    def to_json(self) -> str:
        """Return one line of canonical JSON."""
        return canonical(self.to_dict())

    @classmethod
    def from_dict(cls, data: object) -> "PlanReport":
        """Read a report from JSON values.

        Raises
        ------
        ReportError
            When they are no report, of a later version, or not what was written.
        """
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ReportError(f"not a plan report: it has no kind {KIND!r}")
        if data.get("schema") != SCHEMA:
            raise ReportError(
                f"written with schema {data.get('schema')!r}, this version reads {SCHEMA}; "
                "replay it with the version that wrote it or a later one"
            )
        content = {key: value for key, value in data.items() if key != "digest"}
        if data.get("digest") != digest(content):
            raise ReportError("its content does not match its digest: it was edited after writing")
        return cls(inputs=data["inputs"], decision=data["decision"])

    @classmethod
    def from_json(cls, text: str) -> "PlanReport":
        """Read a report from its text; raises `ReportError` as `from_dict`, and for torn JSON."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ReportError(f"torn or not JSON: {error}") from error
        return cls.from_dict(data)

    def pricer(self, coefficients: Coefficients | str | None = None) -> Pricer:
        """Compile the pricer of the inputs, under today's table of that name or another one."""
        return compile_pricer(
            from_plain(Model, self.inputs["model"], "model"),
            from_plain(Topology, self.inputs["topology"], "topology"),
            from_plain(Step, self.inputs["step"], "step"),
            coefficients=coefficients or self.inputs["coefficients"]["name"],
            routing=Routing.from_plain(self.inputs["routing"]),
        )

    def again(self, coefficients: Coefficients | str | None = None) -> "PlanReport":
        """Take the decision again with today's code and table.

        Raises
        ------
        ReportError
            When today's code cannot take the recorded inputs; says why.
        """
        try:
            pricer = self.pricer(coefficients)
            batch = batch_from_plain(self.inputs["batch"])
            sample = from_plain(MemorySample, self.inputs["sample"], "sample")
            allow = bool(self.inputs["allow_unpriced"])
        except (ConfigError, KeyError, TypeError) as error:
            raise ReportError(f"its inputs cannot be priced today: {error}") from error
        decision = pricer.admit(batch, sample, allow_unpriced=allow)
        return PlanReport.of(pricer, batch, decision, allow_unpriced=allow)


def read_reports(path: Path) -> list[PlanReport]:
    """Read the reports of a file: one as JSON, or those of a rank's records (``.jsonl``).

    Raises
    ------
    ReportError
        Naming the file (and line) and what is wrong; also when there is no report in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"cannot read {path}: {error}") from error
    if path.suffix != ".jsonl":
        try:
            return [PlanReport.from_json(text)]
        except ReportError as error:
            raise ReportError(f"{path}: {error}") from error
    found = list(_of_records(path, text.splitlines()))
    if not found:
        raise ReportError(f"{path} holds no plan report; rank 0 writes them into its records")
    return found


def _of_records(path: Path, lines: Iterable[str]) -> Iterable[PlanReport]:
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            report = ((data.get("planned") or {}).get("decision") or {}).get("report")
            if report is not None:
                yield PlanReport.from_dict(report)
        except (json.JSONDecodeError, AttributeError, ReportError) as error:
            raise ReportError(f"{path}:{number}: {error}") from error


def decision_to_plain(decision: Decision) -> dict[str, Any]:
    """Return a decision as JSON values: what was decided, on what numbers."""
    term, moment, size = decision.binding_term
    plain: dict[str, Any] = {
        "verdict": type(decision).__name__.lower(),
        "binding": {
            "rank": decision.binding.rank,
            "term": term,
            "moment": str(moment),
            "bytes": int(size),
        },
        "demands": [
            to_plain(demand) | {"bytes": demand.bytes, "short_bytes": demand.short_bytes}
            for demand in decision.demands
        ],
        "children": [_child(child) for child in decision.children],
        "unpriced": [str(part) for part in decision.children[0].prices[0].unpriced],
    }
    if isinstance(decision, Split):
        plain["unsplit"] = to_plain(decision.unsplit)
    if isinstance(decision, Refuse):
        plain |= {"reason": decision.reason, "ways_out": to_plain(decision.ways)}
    return plain


def _child(child: Child) -> dict[str, Any]:
    """Return a child; ranks that are alike share one entry of ``kinds``."""
    numbers: dict[int, int] = {}
    kinds: list[dict[str, Any]] = []
    of_rank: list[int] = []
    for price in child.prices:
        key = id(price.figures)
        if key not in numbers:
            numbers[key] = len(kinds)
            kinds.append(
                {
                    "tokens": price.local_tokens,
                    "expected_bytes": price.expected_bytes,
                    "bound_bytes": price.bound_bytes,
                    "growth_bytes": price.growth_bytes,
                    "retained_bytes": price.retained_bytes,
                    "terms": {str(m): price.terms_at(m) for m in price.moments},
                }
            )
        of_rank.append(numbers[key])
    return {"replicas": to_plain(child.layout.replicas), "kinds": kinds, "of_rank": of_rank}


def batch_from_plain(data: Mapping[str, Any]) -> Batch:
    """Return the batch of `to_plain`; raises `ConfigError` for one that cannot be."""
    if data["rank_tokens"]:
        return Batch(rank_tokens=data["rank_tokens"], gradients=not data["forward_only"])
    prefixes: dict[tuple[int, ...], Prefix] = {}

    def prefix(chain: "Sequence[int]") -> Prefix | None:
        if not chain:
            return None
        key = tuple(chain)
        if key not in prefixes:
            tokens = data["prefix_tokens"][chain[-1]]
            prefixes[key] = Prefix(name=str(chain[-1]), tokens=tokens, after=prefix(chain[:-1]))
        return prefixes[key]

    chains = data["prefixes"] or [()] * len(data["requests"])
    return Batch(
        requests=[
            Request(
                tokens=tokens,
                prefix=prefix(chain),
                gradient=not data["forward_only"],
                targets=0 if data["headless"] else None,
            )
            for tokens, chain in zip(data["requests"], chains, strict=True)
        ]
    )
