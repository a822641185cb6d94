"""A restricted unpickler: plain containers only, in a stream, with a say over what is kept.

It reads the opcodes of protocols 2 to 5 that Python's picklers write for None, bool, int, float,
str, bytes, tuple, list and dict. Nothing else is understood, so that nothing can be imported,
called or built: any other opcode ends the reading. What a file may claim is bounded by its size.

A dict that has its items is handed to ``fold``, and what that returns stands in its place from then
on, in the memo as well: a file of millions of small dicts never lies in memory as dicts.
"""

import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from jobs.snapshot.scalars import scalar_opcodes
from jobs.snapshot.stream import SnapshotError, Stream

MOST_MARKS, MOST_WAITING = 100, 10_000
"""Open containers and waiting values. Python's picklers write 1000 items at a time; a snapshot is
eight containers deep."""

LONGEST_SHARED = 64  # characters up to which equal strings are one
FREE_ITEMS, BYTES_AN_ITEM = 50_000, 32
"""Items that a file may hold outside what is folded: so many, and one for each so many bytes."""

LONG_GETS = re.compile(rb"(?:j[\x00-\xff]{4})+")
SHORT_GETS = re.compile(rb"(?:h[\x00-\xff])+")

OTHER_FILES = {
    b"\x1f\x8b": ": gzip has compressed it; unpack it first",
    b"BZh": ": bzip2 has compressed it; unpack it first",
    b"\xfd7zXZ": ": xz has compressed it; unpack it first",
    b"\x28\xb5\x2f\xfd": ": zstd has compressed it; unpack it first",
    b"PK\x03\x04": ": it is a zip archive, such as torch.save writes; "
    "write it with torch.cuda.memory._dump_snapshot",
}
"""First bytes of files that are taken for snapshots, and what to do with them."""

CODES: dict[str, int] = {op.name: ord(op.code) for op in pickletools.opcodes}
NAMES = {code: name for name, code in CODES.items()}


class List(list[Any]):
    """A list, and its place in the memo."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot: int | None = None


class Dict(dict[str, Any]):
    """A dict, and its place in the memo."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot: int | None = None


COUNTED = frozenset({List, Dict, str, bytes, int, float})
"""Types that count against a file's allowance where they lie in a list."""


class Unpickler:
    """Reads one pickle.

    Parameters
    ----------
    file
        Opened for reading bytes.
    size
        Bytes of the file.
    fold
        What to keep of a dict; the dict itself where nothing else is.
    """

    def __init__(self, file: BinaryIO, size: int, fold: Callable[[Dict], Any]) -> None:
        self._stream, self._fold = Stream(file, size), fold
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: list[Any] = []
        self._memo_at = -1
        self._shared: dict[Any, Any] = {}
        self._items_left = FREE_ITEMS + size // BYTES_AN_ITEM
        self._done = False
        self._actions: list[Callable[[], None] | None] = [None] * 256
        for name, read in scalar_opcodes(self._stream).items():
            self._actions[CODES[name]] = self._pushing(read)
        for name, action in self._container_opcodes().items():
            self._actions[CODES[name]] = action

    def load(self) -> Any:
        """Read to the end and return what the file holds.

        Raises
        ------
        SnapshotError
            For anything but plain containers, for a file that is cut short or goes on behind its
            end, and for one that claims more than its size allows.
        """
        stream, actions = self._stream, self._actions
        self._start()
        try:
            while not self._done:
                stream.ready()
                action = actions[stream.data[stream.at]]
                if action is None:
                    raise self._refusal()
                stream.at += 1
                action()
        except (IndexError, struct.error) as error:
            raise stream.cut_short() from error
        if not stream.is_at_end():
            raise SnapshotError(
                f"data follow the pickle's end at byte {stream.offset}; a snapshot is one pickle"
            )
        if len(self._stack) != 1 or self._marks:
            raise SnapshotError("the pickle ends with containers open; write the snapshot again")
        return self._stack[0]

    def replace(self, container: List | Dict, kept: Any) -> None:
        """Let ``kept`` stand for ``container`` wherever the file names it again."""
        if container.slot is not None:
            self._memo[container.slot] = kept

    def _start(self) -> None:
        self._stream.ready()
        head = self._stream.data[: max(map(len, OTHER_FILES))]
        if len(head) < 2 or head[0] != CODES["PROTO"] or head[1] not in (2, 3, 4, 5):
            told = (word for start, word in OTHER_FILES.items() if head.startswith(start))
            why = next(told, "" if head else ": it is empty")
            raise SnapshotError(f"the file is no pickle of protocol 2 to 5{why}")
        self._stream.at = 2

    def _refusal(self) -> SnapshotError:
        code = self._stream.data[self._stream.at]
        return SnapshotError(
            f"opcode {NAMES.get(code, hex(code))} at byte {self._stream.offset}: a snapshot holds "
            "plain lists, dicts, tuples, strings and numbers; nothing was run"
        )

    def _spend(self, items: int) -> None:
        self._items_left -= items
        if self._items_left < 0:
            raise SnapshotError(
                "the file holds too many values for its size that are no part of a snapshot"
            )

    def _pushing(self, read: Callable[[], Any]) -> Callable[[], None]:
        return lambda: self._push(self._one(read()))

    def _push(self, value: Any) -> None:
        self._stack.append(value)
        if len(self._stack) > MOST_WAITING:
            raise SnapshotError(
                f"more than {MOST_WAITING} values wait at byte {self._stream.offset}: nested "
                "deeper, or written otherwise, than a snapshot"
            )

    def _one(self, value: Any) -> Any:
        """Return the first of the equal short strings, or tuples, that were read."""
        if type(value) is not tuple and (type(value) is not str or len(value) > LONGEST_SHARED):
            return value
        first = self._shared.setdefault(value, value)
        if first is value:
            self._spend(len(value) if type(value) is tuple else 1)
        return first

    def _mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []
        if len(self._marks) > MOST_MARKS:
            raise SnapshotError(
                f"nested deeper than {MOST_MARKS} containers at byte {self._stream.offset}"
            )

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        items = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return items

    def _tuple(self, items: list[Any]) -> None:
        if not all(isinstance(item, (str, int, float, type(None))) for item in items):
            raise SnapshotError("a tuple of containers; those of a snapshot hold numbers")
        self._push(self._one(tuple(items)))

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not List:
            raise SnapshotError(f"items for a {type(target).__name__}, which takes none")
        target += items
        if not COUNTED.isdisjoint(map(type, items)):
            self._spend(len(items))

    def _update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not Dict:
            raise SnapshotError(f"keys for a {type(target).__name__}, which takes none")
        keys = items[::2]
        if len(items) % 2 or not all(type(key) is str for key in keys):
            raise SnapshotError("a dict with a key that is no string; those of a snapshot are")
        target.update(zip(keys, items[1::2], strict=True))
        kept = self._fold(target)
        if kept is target:
            self._spend(len(items))
            return
        self._stack[-1] = kept
        self.replace(target, kept)

    def _memoize(self) -> None:
        top = self._stack[-1]
        if type(top) is Dict or type(top) is List:
            top.slot = len(self._memo)
        if self._memo_at == self._stream.offset - 1:
            raise SnapshotError(f"one value is memoized twice at byte {self._stream.offset}")
        self._memo.append(top)
        self._memo_at = self._stream.offset

    def _put(self, width: int) -> None:
        slot = int.from_bytes(self._stream.take(width), "little")
        if slot != len(self._memo):
            raise SnapshotError(
                f"memo entry {slot} where {len(self._memo)} is due; Python's picklers number them "
                "one by one"
            )
        self._memoize()

    def _get(self, pattern: re.Pattern[bytes], width: int) -> None:
        """Read a run of gets at once: a stack of frames is one."""
        stream = self._stream
        found = pattern.match(stream.data, stream.at - 1)
        if found is None:
            raise stream.cut_short()
        numbers = bytearray(found.group())
        del numbers[::width]
        memo = self._memo
        slots = memoryview(numbers).cast("I") if width > 2 else numbers
        self._stack += [memo[slot] for slot in slots]
        stream.at = found.end()
        if len(self._stack) > MOST_WAITING:
            self._push(None)  # raises

    def _stop(self) -> None:
        self._done = True

    def _container_opcodes(self) -> dict[str, Callable[[], None]]:
        return {
            "MARK": self._mark,
            "TUPLE": lambda: self._tuple(self._since_mark()),
            "TUPLE1": lambda: self._tuple(self._last(1)),
            "TUPLE2": lambda: self._tuple(self._last(2)),
            "TUPLE3": lambda: self._tuple(self._last(3)),
            "EMPTY_LIST": lambda: self._push(List()),
            "APPEND": lambda: self._extend(self._last(1)),
            "APPENDS": lambda: self._extend(self._since_mark()),
            "EMPTY_DICT": lambda: self._push(Dict()),
            "SETITEM": lambda: self._update(self._last(2)),
            "SETITEMS": lambda: self._update(self._since_mark()),
            "MEMOIZE": self._memoize,
            "BINPUT": lambda: self._put(1),
            "LONG_BINPUT": lambda: self._put(4),
            "BINGET": lambda: self._get(SHORT_GETS, 2),
            "LONG_BINGET": lambda: self._get(LONG_GETS, 5),
            "FRAME": lambda: self._skip(8),
            "STOP": self._stop,
        }

    def _skip(self, size: int) -> None:
        self._stream.take(size)
