"""Opcodes of a pickle that stand for one value: numbers, constants, strings and bytes."""

import struct
from collections.abc import Callable

from jobs.snapshot.stream import SnapshotError, Stream

LONGEST_INT = 9  # bytes: 64 bits and a sign


def scalar_opcodes(stream: Stream) -> dict[str, Callable[[], object]]:
    """Return, by opcode, what reads its value from ``stream``.

    The readers raise `SnapshotError` for integers wider than 64 bits and for text that is none, and
    `struct.error` where the file is cut short.
    """

    def fixed(layout: str) -> Callable[[], object]:
        form = struct.Struct(layout)

        def read() -> object:
            value = form.unpack_from(stream.data, stream.at)[0]
            stream.at += form.size
            return value

        return read

    def sized(width: int) -> bytes:
        return stream.take(int.from_bytes(stream.take(width), "little"))

    def long(width: int) -> int:
        size = int.from_bytes(stream.take(width), "little")
        if size > LONGEST_INT:
            raise SnapshotError(
                f"an integer of {size} bytes at byte {stream.offset}; sizes and addresses have 8"
            )
        return int.from_bytes(stream.take(size), "little", signed=True)

    def text(width: int) -> str:
        try:
            return sized(width).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise SnapshotError(f"a string that is no text: {error}") from error

    return {
        "NONE": lambda: None,
        "NEWTRUE": lambda: True,
        "NEWFALSE": lambda: False,
        "EMPTY_TUPLE": lambda: (),
        "BININT": fixed("<i"),
        "BININT1": fixed("<B"),
        "BININT2": fixed("<H"),
        "BINFLOAT": fixed(">d"),
        "LONG1": lambda: long(1),
        "LONG4": lambda: long(4),
        "SHORT_BINUNICODE": lambda: text(1),
        "BINUNICODE": lambda: text(4),
        "BINUNICODE8": lambda: text(8),
        "SHORT_BINBYTES": lambda: sized(1),
        "BINBYTES": lambda: sized(4),
        "BINBYTES8": lambda: sized(8),
    }
