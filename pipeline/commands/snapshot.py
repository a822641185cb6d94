"""Read a PyTorch memory snapshot: peak, working set, frames at the peak, planner terms.

Exit code: 0 read, 2 it is no snapshot, or says nothing of what was asked.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jobs.allocator.history import snapshot_steps, stated_settings
from jobs.allocator.replay import Reserved, replay
from jobs.record import read_records
from jobs.snapshot.attribution import Sizes, attribute
from jobs.snapshot.held import Group, Held, held, live_groups
from jobs.snapshot.history import History, history
from jobs.snapshot.read import read_snapshot
from jobs.snapshot.stream import SnapshotError
from jobs.snapshot.tables import HOST, Frame, Snapshot, Stacks
from jobs.spec import CellSpec
from pipeline.plain import plain
from planner.errors import ConfigError, PlannerError
from planner.local import localize
from planner.units import ceil_div, gib

BAD_INPUT = 2
BARS = "▁▂▃▄▅▆▇█"
BESIDE_BARS = 31
"""Columns that the names of the figures take, and the space around them."""
LIBRARIES = ("/torch/", "/contextlib.py")
"""Frames of these say less than those that call them."""

NO_HISTORY = (
    "the history is empty, so that no peak is known: what follows is live as the snapshot was "
    "taken; call torch.cuda.memory._record_memory_history() before the work"
)

NO_ALLOCATION = (
    "the history holds no allocation, so that no peak is known: what follows is live as the "
    "snapshot was taken; let torch.cuda.memory._record_memory_history keep more (max_entries), or "
    "begin before the work"
)

CUT = (
    "the history is cut: events older than it were recorded and are lost, so that the peak may lie "
    "before it and the working set be larger; let torch.cuda.memory._record_memory_history keep "
    "more (max_entries), or begin later"
)

PACKED = (
    "the replay packs what is older than the history without a gap: it may reserve less than was "
    "reserved"
)


def run(
    file: Annotated[Path, typer.Argument(help="what torch.cuda.memory._dump_snapshot wrote")],
    spec: Annotated[
        Path | None, typer.Option(help="the cell's spec file, to tell terms by their size")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="the rank's records, for its tokens and routed rows")
    ] = None,
    device: Annotated[int | None, typer.Option(help="one device; by default all of them")] = None,
    top: Annotated[int, typer.Option(min=1, help="stacks to show")] = 12,
    replayed: Annotated[
        bool, typer.Option("--replay", help="serve the history again: reserved bytes by the rules")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Read a PyTorch memory snapshot: peak, working set, frames at the peak, planner terms."""
    console = Console(markup=False, emoji=False)  # names of C++ have brackets and colons
    try:
        sizes = _sizes(spec, record)
        snapshot = read_snapshot(file)
        wanted = snapshot.devices if device is None else (device,)
        if device is not None and device not in snapshot.devices:
            held_by = ", ".join(map(str, snapshot.devices)) or "none"
            raise ConfigError(f"{file} says nothing of device {device}; it has {held_by}")
    except (SnapshotError, PlannerError, OSError) as error:
        typer.echo(f"peakcast snapshot: {plain(_words(file, error))}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    found = [_Findings(snapshot, number, sizes, replayed) for number in wanted]
    if as_json:
        typer.echo(json.dumps([one.to_dict(top) for one in found], indent=1))
        return
    if not found:
        console.print("the snapshot holds no segments and no history")
    for one in found:
        one.show(console, top)


def _words(file: Path, error: Exception) -> str:
    """Say what is wrong, and with which file."""
    if isinstance(error, OSError):
        return f"{error.filename or file}: {error.strerror or error}"
    return f"{file}: {error}" if isinstance(error, SnapshotError) else str(error)


def _sizes(spec_path: Path | None, record_path: Path | None) -> Sizes:
    """Return what is known of the cell that the snapshot was taken of."""
    if spec_path is None and record_path is None:
        return Sizes()
    if spec_path is None or record_path is None:
        raise ConfigError(
            "terms are told by size from the cell's widths and the rank's tokens; give both --spec "
            "OUT/specs/KEY.json and --record OUT/records/KEY.aN.rN.jsonl"
        )
    spec = CellSpec.read(spec_path)
    local = localize(spec.model, spec.topology, spec.step)
    records = read_records(record_path)[0]
    planned = [record.planned for record in records if record.planned]
    if not planned:
        raise ConfigError(f"{record_path} holds no record with a plan")
    observed = [record.observed for record in records if record.observed]
    rows = observed[-1].routed_rows if observed else []
    return Sizes(local, planned[-1].local_tokens, frozenset(rows))


class _Findings:
    """What a snapshot says of one device."""

    def __init__(self, snapshot: Snapshot, device: int, sizes: Sizes, replayed: bool) -> None:
        self.device, self.stacks = device, snapshot.stacks
        self.held: Held = held(snapshot, device)
        self.history: History | None = history(snapshot, device)
        self.live: Sequence[Group] = (
            live_groups(snapshot, device) if self.history is None else self.history.at_peak
        )
        self._recorded = len(snapshot.rows_of(device))
        self.terms = attribute(self.live, snapshot.stacks, sizes)
        self.replayed: Reserved | None = None
        if replayed and self.history is not None and device != HOST:  # which has other rules
            self.replayed = replay(
                snapshot_steps(snapshot, device), stated_settings(snapshot.settings)
            )

    def to_dict(self, top: int) -> dict[str, object]:
        """Return plain JSON values."""
        past = None if self.history is None else asdict(self.history)
        if past is not None:
            del past["at_peak"]
        return {
            "device": self.device,
            "held": asdict(self.held),
            "history": past,
            "replayed": None if self.replayed is None else asdict(self.replayed),
            "note": self._note(),
            "terms": self.terms,
            "top": [
                {"bytes": size, "count": count, "frames": [list(f) for f in frames]}
                for frames, size, count in top_stacks(self.live, self.stacks, top)
            ],
        }

    def show(self, console: Console, top: int) -> None:
        """Print."""
        console.print(_figures(self.device, self.held, self.history, self.replayed, console.width))
        moment = "at the peak" if self.history else "live"
        note = self._note()
        if note is not None:
            console.print(note, style="yellow", soft_wrap=True)
        stacks = Table(f"stack {moment}", "bytes", "blocks", box=None)
        for frames, size, count in top_stacks(self.live, self.stacks, top):
            stacks.add_row("\n".join(_shown(frames)), gib(size), str(count))
        console.print(stacks)
        terms = Table(f"term {moment}", "bytes", box=None)
        for name, size in self.terms.items():
            terms.add_row(name, gib(size))
        console.print(terms)

    def _note(self) -> str | None:
        """Return what the figures lack."""
        if self.history is None:
            return NO_ALLOCATION if self._recorded else NO_HISTORY
        notes = [CUT] if self.history.whole is False else []
        if self.replayed is not None and self.history.baseline_bytes:
            notes.append(PACKED)
        return "; ".join(notes) or None


def top_stacks(
    live: Iterable[Group], stacks: Stacks, top: int
) -> list[tuple[list[Frame], int, int]]:
    """Return (frames, bytes, blocks) of the stacks that hold most, largest first."""
    sums: dict[int, tuple[int, int]] = {}
    for group in live:
        size, count = sums.get(group.stack, (0, 0))
        sums[group.stack] = size + group.nbytes, count + group.count
    most = sorted(sums.items(), key=lambda item: item[1], reverse=True)[:top]
    return [(stacks.frames_of(stack), size, count) for stack, (size, count) in most]


def _shown(frames: list[Frame]) -> list[str]:
    """Return the innermost frames that say most.

    They are Python's, but for torch's own and for those in files of dispatch modes, which every
    operator passes through; the ledger is one.
    """
    modes = {frame.filename for frame in frames if frame.name == "__torch_dispatch__"}
    told = [
        frame
        for frame in frames
        if frame.filename.endswith(".py")
        and frame.filename not in modes
        and not any(part in frame.filename for part in LIBRARIES)
    ]
    chosen = (told or frames)[:2]
    words = (f"{'/'.join(f.filename.split('/')[-3:])}:{f.line} {f.name}" for f in chosen)
    return [plain(one) for one in words] or ["-"]


def _figures(
    device: int, now: Held, past: History | None, replayed: Reserved | None, width: int
) -> Table:
    """Return a device's figures, for a terminal of so many columns."""
    table = Table("pinned host memory" if device == HOST else f"device {device}", "", box=None)
    rows: list[tuple[str, str]] = []
    if past is not None:
        rows += [
            ("peak", f"{gib(past.peak_bytes)} at event {past.peak_event}"),
            ("working set", gib(past.working_set_bytes)),
            ("live when the history began", gib(past.baseline_bytes)),
            ("reserved at most", gib(past.reserved_peak_bytes)),
            ("history", f"{past.events} events, {past.seconds:.1f} s"),
            ("live bytes", _bars(past, max(1, width - BESIDE_BARS))),
        ]
        if replayed is not None:
            rows.append(("reserved at most, replayed", gib(replayed.peak_bytes)))
        rows += [
            ("out of memory", f"asked for {gib(asked)}, CUDA had {gib(free)} free")
            for asked, free in past.ooms
        ]
    rows += [
        ("allocated now", f"{gib(now.allocated_bytes)}, {gib(now.requested_bytes)} asked for"),
        ("reserved now", f"{gib(now.reserved_bytes)} in {now.segments} segments"),
        ("waited for by streams", gib(now.pending_bytes)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _bars(past: History, width: int) -> str:
    """Draw a timeline in one line of at most so many bars, each the highest of its stretch."""
    live = [max(0, height) for _, height, _ in past.timeline]
    stretch, steps = ceil_div(len(live), width), len(BARS) - 1
    heights = (max(live[start : start + stretch]) for start in range(0, len(live), stretch))
    return "".join(BARS[round(steps * height / max(1, past.peak_bytes))] for height in heights)
