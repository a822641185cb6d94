"""Read a snapshot file: what `torch.cuda.memory._dump_snapshot` writes, from torch 2.1 on.

Each event, block, segment and frame becomes a row of `jobs.snapshot.tables` as soon as its dict is
complete, so that memory grows with what the rows say and not with how a pickle says it.
"""

from array import array
from pathlib import Path
from reprlib import repr as shortened
from stat import S_ISDIR, S_ISREG
from typing import Any

from jobs.snapshot.stream import SnapshotError
from jobs.snapshot.tables import (
    ACTIONS,
    ENTRIES,
    HOST,
    OTHER,
    STATES,
    Blocks,
    Events,
    Frame,
    Segment,
    Snapshot,
    Stacks,
)
from jobs.snapshot.unpickle import Dict, List, Unpickler

_ACTION_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
_WORD = (1 << 64) - 1  # addresses and streams are written as signed words


class _Row:
    """Stands for a dict that is a row now."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Number:
    """Stands for a frame, or for a stack, by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _FrameNumber(_Number):
    __slots__ = ()


class _StackNumber(_Number):
    __slots__ = ()


EVENT, BLOCK, NOTE = _Row("event"), _Row("block"), _Row("annotation")


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot.

    Raises
    ------
    SnapshotError
        When the file is no snapshot of torch 2.1 or later; names what is wrong and where. When it
        is a pipe or a device, for what a snapshot may claim follows from the bytes it has.
    OSError
        When it cannot be opened.
    """
    status = path.stat()
    if not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode)):  # opening a folder says so
        raise SnapshotError("it is no file of a known size; write what it gives to a file first")
    with path.open("rb") as file:
        return _Folder(Unpickler, file, status.st_size).snapshot()


class _Folder:
    """Turns a snapshot's dicts into rows while they are read."""

    def __init__(self, kind: type[Unpickler], file: Any, size: int) -> None:
        self._reader = kind(file, size, self._fold)
        self._stacks, self._events, self._blocks = Stacks(), Events(), Blocks()
        self._segments: list[Segment] = []
        self._frames: dict[Frame, _FrameNumber] = {}
        self._by_frames: dict[bytes, _StackNumber] = {b"": _StackNumber(0)}
        self._pools = {(0, 0): 0}
        self._taken = 0  # blocks that belong to a segment

    def snapshot(self) -> Snapshot:
        """Read the file to its end."""
        whole = self._reader.load()
        if not isinstance(whole, dict) or not {"segments", "device_traces"} <= set(whole):
            raise SnapshotError(
                "the file holds no snapshot: it has no segments and device_traces; write it with "
                "torch.cuda.memory._dump_snapshot of torch 2.1 or later"
            )
        segments = [
            *_list(whole["segments"], "segments"),
            *_list(whole.get("host_segments", []), "host_segments"),
        ]
        if len(segments) != len(self._segments):
            raise SnapshotError("segments lie outside the list of segments")
        traces, host = self._traces(whole)
        return Snapshot(
            segments=tuple(self._segments),
            blocks=self._blocks,
            events=self._events,
            traces=traces,
            host_trace=host,
            stacks=self._stacks,
            settings=_settings(whole),
            history_entries=_whole(whole, ENTRIES) if ENTRIES in whole else None,
        )

    def _traces(self, whole: dict[str, Any]) -> tuple[tuple[range, ...], range]:
        """Return each device's rows and the host's: they were read one trace after another."""
        found: dict[str, list[range]] = {"device_traces": [], "host_traces": []}
        start = 0
        for name in (key for key in whole if key in found):
            given = _list(whole[name], name)
            for trace in given if name == "device_traces" else [given]:
                if any(event is not EVENT for event in _list(trace, name)):
                    raise SnapshotError("a device's trace holds something that is no event")
                found[name].append(range(start, start + len(trace)))
                start += len(trace)
        if start != len(self._events):
            raise SnapshotError("events lie outside the devices' traces, or twice in them")
        return tuple(found["device_traces"]), (*found["host_traces"], range(0))[0]

    def _fold(self, values: Dict) -> Any:
        """Keep a row of a dict that is one; the dict itself otherwise."""
        if "action" in values and "size" in values:
            return self._event(values)
        if "filename" in values and "line" in values:
            return self._frame(values)
        if "state" in values and "size" in values:
            return self._block(values)
        if "blocks" in values and "total_size" in values:
            return self._segment(values)
        if "time_us" in values and "device" in values:
            return NOTE
        return values

    def _frame(self, values: Dict) -> _FrameNumber:
        frame = Frame(_text(values, "filename"), _whole(values, "line"), _text(values, "name"))
        known = self._frames.get(frame)
        if known is None:
            known = self._frames[frame] = _FrameNumber(len(self._stacks.frames))
            self._stacks.frames.append(frame)
        return known

    def _stack(self, values: Dict) -> int:
        """Return the number of a row's stack; its list of frames is given up."""
        given = values.get("frames")
        if given is None:
            return 0
        if isinstance(given, _StackNumber):
            return given.number
        if not isinstance(given, List) or not all(type(f) is _FrameNumber for f in given):
            raise SnapshotError("frames that are no list of frames")
        packed = array("I", [frame.number for frame in given]).tobytes()
        known = self._by_frames.get(packed)
        if known is None:
            known = self._by_frames[packed] = _StackNumber(len(self._stacks.packed))
            self._stacks.packed.append(packed)
        self._reader.replace(given, known)
        return known.number

    def _event(self, values: Dict) -> _Row:
        events = self._events
        action = _ACTION_NUMBERS.get(_text(values, "action"), OTHER)
        where = "device_free" if "device_free" in values else "addr"
        events.action.append(action)
        events.address.append(_whole(values, where) & _WORD if where in values else 0)
        events.size.append(_size(values, "size"))
        events.stream.append(_whole(values, "stream") & _WORD if "stream" in values else 0)
        events.time.append(_whole(values, "time_us") & _WORD if "time_us" in values else 0)
        events.stack.append(self._stack(values))
        events.pool.append(self._pool(values))
        return EVENT

    def _pool(self, values: Dict) -> int:
        """Return the number of an event's private pool; 0: none, or none is told."""
        name = values.get("pool_id", (0, 0))
        known = self._pools.get(name) if type(name) is tuple else None
        if known is None:
            if type(name) is not tuple or [type(part) for part in name] != [int, int]:
                raise SnapshotError(f"pool_id is {_said(name)}, which is no pair of numbers")
            known = self._pools[name] = len(self._events.pools)
            self._events.pools.append(name)
        return known

    def _block(self, values: Dict) -> _Row:
        blocks = self._blocks
        state = STATES.get(_text(values, "state"))
        if state is None:
            said = _said(values["state"])
            raise SnapshotError(f"a block in state {said}; known: {', '.join(STATES)}")
        if "requested_size" not in values:
            raise SnapshotError(
                "blocks without requested_size: the snapshot is of a torch before 2.1; "
                "write it with a later one"
            )
        blocks.address.append(_whole(values, "address") & _WORD if "address" in values else 0)
        blocks.size.append(_size(values, "size"))
        blocks.requested.append(_size(values, "requested_size"))
        blocks.state.append(state)
        blocks.stack.append(self._stack(values))
        return BLOCK

    def _segment(self, values: Dict) -> _Row:
        blocks = _list(values["blocks"], "blocks")
        mine = range(self._taken, self._taken + len(blocks))
        if any(block is not BLOCK for block in blocks) or mine.stop != len(self._blocks):
            raise SnapshotError("a segment's blocks are not its own")
        self._taken = mine.stop
        self._stack(values)
        segment = Segment(
            device=_device(values),
            address=_whole(values, "address") & _WORD,
            size=_size(values, "total_size"),
            stream=_whole(values, "stream") & _WORD,
            pool=_text(values, "segment_type"),
            expandable=bool(values.get("is_expandable")),
            blocks=mine,
        )
        self._place(segment)
        self._segments.append(segment)
        return _Row("segment")

    def _place(self, segment: Segment) -> None:
        """Give blocks that tell no address theirs: they lie one behind the other."""
        address = segment.address
        for row in segment.blocks:
            self._blocks.address[row] = self._blocks.address[row] or address & _WORD
            address += self._blocks.size[row]


def _said(value: object) -> str:
    """Return a value for a message; a container may name others without end, and is only named."""
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__.lower()}"
    return shortened(value)


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise SnapshotError(f"{name} is no list")
    return value


def _whole(values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int or value.bit_length() > 64:
        raise SnapshotError(f"{key} is {_said(value)}, which is no 64-bit integer")
    return value


def _settings(whole: dict[str, Any]) -> dict[str, object]:
    """Return what is said of the allocator's settings; torch before 2.2 says nothing."""
    given = whole.get("allocator_settings") or {}
    if not isinstance(given, dict):
        raise SnapshotError("allocator_settings is no dict")
    return dict(given)


def _device(values: Dict) -> int:
    device = _whole(values, "device")
    if device < HOST:
        raise SnapshotError(f"device is {device}, which is no device")
    return device


def _size(values: Dict, key: str) -> int:
    size = _whole(values, key)
    if not 0 <= size < 1 << 63:
        raise SnapshotError(f"{key} is {size}, which is no size")
    return size


def _text(values: Dict, key: str) -> str:
    value = values.get(key)
    if type(value) is not str:
        raise SnapshotError(f"{key} is {_said(value)}, which is no string")
    return value
