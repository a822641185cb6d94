"""The live loop on a CUDA device: the ledger's figures, and the device's beside them."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import torch

from jobs.allocator.history import stated_settings
from jobs.allocator.replay import ledger_steps, replay
from jobs.live import LiveLoop
from jobs.meter.cuda import DeviceCall, DeviceMeter
from jobs.record import Observed
from jobs.sides import Outside
from jobs.snapshot.tables import ENTRIES
from jobs.workload import LocalBatch
from planner.admission import Decision, Refuse
from planner.batch import Layout
from planner.fragments import EXPANDABLE, fragments_of
from planner.hybridep import buffer_bytes
from planner.units import gib

HISTORY_ENTRIES = 200_000
"""Events of a snapshot's history: older ones are overwritten."""

SNAPSHOT_BYTES = 512 * 2**20
"""Largest snapshot that is kept."""


def held_buffers(buffer: Any) -> Outside:
    """Return what DeepEP's HybridEPBuffer holds, by its own configuration; ``None``: nothing yet.

    Its configurer's ``buffer_config`` has the tokens a rank that it was made for, or has grown to.
    """
    if buffer is None:
        return Outside(0, 0)
    config = buffer.configurer.buffer_config
    tokens, ranks = int(config.max_num_of_tokens_per_rank), int(buffer.group_size)
    nbytes = buffer_bytes(
        tokens,
        ranks=ranks,
        hidden=int(config.hidden_dim),
        num_experts=int(config.num_of_experts_per_rank) * ranks,
        domains=int(buffer.num_of_nodes),
    )
    return Outside(nbytes, tokens)


def current_buffers() -> Outside:
    """Return what this process's buffer holds."""
    from megatron.core.transformer.moe import fused_a2a

    return held_buffers(getattr(fused_a2a, "_hybrid_ep_buffer", None))


class CudaLoop(LiveLoop):
    """Runs a cell's calls on a CUDA device.

    Parameters
    ----------
    device
        Where the model lies.
    meter
        Follows the device.
    snapshots
        Folder for the calls' allocator histories.
    """

    def __init__(
        self, *args: Any, device: torch.device, meter: DeviceMeter, snapshots: Path
    ) -> None:
        super().__init__(*args)
        self.device, self.meter, self.snapshots = device, meter, snapshots
        self._resident = self.ledger.resident() if self.ledger else []
        self._timeline: list[Any] = []  # allocations of every call so far
        self.allocator = stated_settings(meter.settings())
        self.fragments = fragments_of(expandable=self.allocator.expandable)
        self._set_aside = 0  # of the room before the call at hand, for fragments
        self._call: DeviceCall | None = None

    def _run(self, index: int, decision: Decision) -> tuple[float | None, Observed | None]:
        with self.meter.call() as self._call:
            self._begin_history()
            try:
                loss, observed = super()._run(index, decision)
            finally:
                self._call.snapshot = self._end_history(index)
        return loss, self._with_device(observed)

    def cut_short(self) -> dict[str, Any]:
        """Return what a call that failed had planned and seen, the device's figures included."""
        parts = super().cut_short()
        return parts | {"observed": self._with_device(parts["observed"])}

    def _with_device(self, observed: Observed | None) -> Observed | None:
        if observed is None or self._call is None or self.seen is None:
            return observed
        self._timeline += self.seen.allocations
        steps = ledger_steps(self._timeline, self._resident)
        reserved = replay(steps, self.allocator).peak_bytes
        self._call.replayed_reserved_bytes = reserved
        self._call.fragments_bytes = self._set_aside
        return dataclasses.replace(observed, device=self._call.to_dict())

    def _batch(self, index: int, layout: Layout) -> LocalBatch:
        batch = super()._batch(index, layout)
        moved = {
            name: getattr(batch, name).to(self.device)
            for name in ("tokens", "targets", "positions")
        }
        return dataclasses.replace(batch, **moved)

    def _outside(self) -> Outside:
        return current_buffers()

    def _room(self, held_over: int, outside: Outside) -> int | None:
        """Without a budget, what a call can count on of the device's free bytes and the cache's."""
        if self.spec.meter.budget_gib is not None:
            return super()._room(held_over, outside)
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        usable = self.fragments.usable(free + cached)
        self._set_aside = free + cached - usable
        return usable

    def _refusal(self, decision: Refuse) -> str:
        """Say besides what the allocator's fragments cost."""
        words = super()._refusal(decision)
        if not self._set_aside:
            return words
        words += f"; {gib(self._set_aside)} of the device's room are set aside for fragments"
        if self.fragments is EXPANDABLE:
            return words
        return f"{words}, most of which PYTORCH_ALLOC_CONF=expandable_segments:True makes usable"

    def _begin_history(self) -> None:
        if self.spec.meter.snapshot:
            torch.cuda.memory._record_memory_history(
                max_entries=HISTORY_ENTRIES, stacks="python", clear_history=True
            )

    def _end_history(self, index: int) -> str:
        """Write the call's history and stop it; return its file, or why there is none."""
        if not self.spec.meter.snapshot:
            return ""
        self.snapshots.mkdir(parents=True, exist_ok=True)
        path = self.snapshots / f"call{index}.pickle"
        taken = torch.cuda.memory._snapshot() | {ENTRIES: HISTORY_ENTRIES}
        with path.open("wb") as file:
            pickle.dump(taken, file)
        torch.cuda.memory._record_memory_history(enabled=None)
        return keep_within(path, SNAPSHOT_BYTES)


def keep_within(path: Path, most: int) -> str:
    """Return the file's name; remove a file of more than ``most`` bytes and say so instead."""
    size = path.stat().st_size
    if size <= most:
        return str(path)
    path.unlink()
    return f"not kept: {size} bytes are more than {most}"
