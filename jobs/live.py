"""The live loop of one rank: sample ▸ price ▸ admit, split or refuse ▸ run ▸ observe ▸ learn.

Ranks exchange what they sampled, and each takes the decision by itself from the same figures: the
decision is a pure function, so that all take the same one.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jobs.meter.call import Call, CallLedger, total
from jobs.meter.ledger import Ledger
from jobs.meter.rules import attribute_peak
from jobs.model.build import ModelUnderTest, routed_rows
from jobs.record import Observed, Planned, RankRecord
from jobs.reservation import reserve_ahead
from jobs.sides import Outside, observe, plan_of
from jobs.spec import CellSpec
from jobs.workload import LocalBatch, local_batch
from planner.admission import Decision, MemorySample, Refuse
from planner.batch import Layout
from planner.plan_report import PlanReport
from planner.pricer import Pricer
from planner.profile import Profile
from planner.profile_store import ProfileStore
from planner.units import GIB

NO_LIMIT = -1
"""Stands for a rank without a limit where ranks exchange integers."""


@dataclass(slots=True)
class _Running:
    """A call under way: its ledger, its batches, the buffers before it, when it began."""

    call: Call | None
    children: Sequence[LocalBatch]
    before: Outside
    started: float
    seconds: float = 0.0


class LiveLoop:
    """Runs the calls of a cell on this rank with the planner live.

    Parameters
    ----------
    model
        This rank's shard, weights set.
    ledger
        Follows live bytes, the model registered; ``None``: nothing is observed but the buffers.
    """

    def __init__(
        self,
        spec: CellSpec,
        rank: int,
        model: ModelUnderTest,
        pricer: Pricer,
        ledger: Ledger | None,
        record: "RecordBase",
    ) -> None:
        self.spec = spec
        self.rank = rank
        self.model = model
        self.pricer = pricer
        self.ledger = ledger
        self.record = record
        self.batch = spec.workload.batch()
        where = spec.meter.profile
        self.profiles = ProfileStore(Path(where)) if where else None
        self.profile = self.profiles.load(pricer) if self.profiles else Profile()
        self.left_over = 0  # what the planner says the call before has left
        self.seen: CallLedger | None = None  # the last call, storage by storage
        self._planned: Planned | None = None  # of the call under way
        self._running: _Running | None = None

    def call(self, index: int) -> RankRecord:
        """Plan and, unless refused, run call ``index``; return what was planned and seen."""
        self._planned = self._running = None
        held_over = self.left_over
        decision = self.pricer.admit(
            self.batch, self._sample(), allow_unpriced=self.spec.meter.allow_unpriced
        )
        prices = [child.prices[self.rank] for child in decision.children]
        planned = plan_of(decision, prices, held_over, self.rank)
        if self.rank == 0:  # all ranks decide alike, so that one report holds for all
            planned.decision["report"] = self._report(decision).to_dict()
        if isinstance(decision, Refuse):
            return self.record.of(
                index,
                "refused",
                planned=planned,
                error=self._refusal(decision),
            )
        self._planned = planned
        loss, observed = self._run(index, decision)
        self.left_over = prices[-1].left_over_bytes
        if observed is not None:
            self.profile = self.profile.learn(
                planned.expected_bytes,
                observed.working_set_bytes,
                planned.retained_bytes,
                observed.retained_bytes,
            )
            if self.profiles:
                self.profiles.learn(self.pricer, self.profile)
        return self.record.of(index, "ok", planned=planned, observed=observed, loss=loss)

    def cut_short(self) -> dict[str, Any]:
        """Return what a call that failed had planned and seen, as parts of its record."""
        seen = self._running is not None and self._running.call is not None
        observed = self._observe(self._running, garbage=0) if seen else None
        return {"planned": self._planned, "observed": observed}

    def agree_on_first(self, mine: int) -> int:
        """Return the first call that some rank has left to do, this one's being ``mine``."""
        return min(row[0] for row in self._exchange([mine]))

    def _report(self, decision: Decision) -> PlanReport:
        """Return the decision with its inputs, for `peakcast replay`."""
        allow = self.spec.meter.allow_unpriced
        return PlanReport.of(self.pricer, self.batch, decision, allow_unpriced=allow)

    def _sample(self) -> MemorySample:
        """Sample this rank's memory and exchange it with all others."""
        outside = self._outside()
        held_over = self.ledger.held_over_bytes if self.ledger else self.left_over
        room = self._room(held_over, outside)
        released = min(held_over, self.left_over)
        rows = self._exchange(
            [
                NO_LIMIT if room is None else room,
                outside.tokens,
                released,
                room is not None,
                *self.profile.to_ints(),
            ]
        )
        return MemorySample(
            room_bytes=tuple(max(0, row[0]) if row[3] else None for row in rows),
            held_tokens=tuple(row[1] for row in rows),
            held_over_bytes=tuple(row[2] for row in rows),
            profiles=tuple(Profile.from_ints(row[4:]) for row in rows),
        )

    def _run(self, index: int, decision: Decision) -> tuple[float | None, Observed | None]:
        """Run the children of a decision, forward and backward each, and observe the call."""
        children = [self._batch(index, child.layout) for child in decision.children]
        self._register(children)
        with self.ledger.call() if self.ledger else nullcontext() as call:
            before = self._outside()
            self._running = _Running(call, children, before, time.perf_counter())
            policy = self.pricer.coefficients.buffers
            reserve_ahead(self.spec, policy, decision, self.rank, before.tokens)
            losses = [self._forward_backward(batch, call) for batch in children]
        loss = None if None in losses else sum(losses)
        self._running.seconds = time.perf_counter() - self._running.started
        self.model.zero_grad(set_to_none=True)
        if call is None:
            return loss, None
        garbage = total(self.ledger.collect_garbage())
        return loss, self._observe(self._running, garbage)

    def _observe(self, running: "_Running", garbage: int) -> Observed:
        """Return what the ledger saw of a call that is over, or was cut short."""
        self.seen = seen = running.call.result
        attribution = attribute_peak(
            *(seen, self.spec.model, self.spec.step, [len(b.tokens) for b in running.children]),
            topology=self.spec.topology,
        )
        seconds = running.seconds or time.perf_counter() - running.started
        rows, after = routed_rows(self.model), self._outside()
        return observe(seen, attribution, running.before, after, rows, garbage, seconds)

    def _outside(self) -> Outside:
        """Read this process's communication buffers."""
        return Outside.now()

    def _room(self, held_over: int, outside: Outside) -> int | None:
        """Return what this rank can still take; ``None``: no limit."""
        budget = self.spec.meter.budget_gib
        return None if budget is None else int(budget * GIB) - held_over - outside.nbytes

    def _register(self, children: Sequence[LocalBatch]) -> None:
        """Count the requests' tensors as resident: a trainer has them before it plans."""
        for batch in children if self.ledger else ():
            for name in ("tokens", "targets", "positions"):
                self.ledger.register(f"batch.{name}", getattr(batch, name))

    def _forward_backward(self, batch: LocalBatch, call: Call | None) -> float | None:
        """Run one child of a call; return its loss, where tensors have values."""
        gradients = self.spec.workload.gradients
        with torch.set_grad_enabled(gradients):
            loss = self.model(batch)
        if call is not None:
            call.forward_done()
        if gradients:
            loss.backward()
        return self._value(loss.detach())

    def _batch(self, index: int, layout: Layout) -> LocalBatch:
        """Return this rank's part of one child of call ``index``."""
        replica = self.spec.topology.dp_rank(self.rank)
        return local_batch(self.spec, self.rank, index, layout.replicas[replica])

    def _refusal(self, decision: Refuse) -> str:
        """Say why a call does not run, and what would let it."""
        return f"{decision.reason}; ways out: {'; '.join(decision.ways_out)}"

    def _exchange(self, figures: Sequence[int]) -> list[list[int]]:
        """Return every rank's figures, in rank order."""
        return exchange(figures)

    def _value(self, loss: torch.Tensor) -> float | None:
        """Return the loss as a number."""
        return float(loss)


class RecordBase:
    """What every record of a rank shares."""

    def __init__(self, spec: CellSpec, attempt: int, rank: int, environment: dict[str, Any]):
        self._shared = {
            "key": spec.key,
            "label": spec.label,
            "attempt": attempt,
            "rank": rank,
            "environment": environment,
        }

    def of(self, index: int, outcome: str, **parts: Any) -> RankRecord:
        """Return the record of call ``index``; the first call of a process is the cold one."""
        return RankRecord(
            **self._shared,
            call=index,
            temperature="warm" if index else "cold",
            outcome=outcome,
            **parts,
        )


def exchange(figures: Sequence[int]) -> list[list[int]]:
    """Return every rank's figures, in rank order."""
    mine = torch.tensor([int(figure) for figure in figures], dtype=torch.int64)
    everyone = mine.new_empty(dist.get_world_size() * len(figures))
    dist.all_gather_into_tensor(everyone, mine)
    return everyone.view(-1, len(figures)).tolist()
