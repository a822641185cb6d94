"""The restricted unpickler: what pickle reads of plain containers, and nothing else."""

import io
import os
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.snapshot.stream import CHUNK, SnapshotError
from jobs.snapshot.unpickle import Dict, Unpickler

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=80)
)
TREES = st.recursive(
    SCALARS | st.tuples(SCALARS, SCALARS) | st.lists(SCALARS, max_size=4).map(tuple),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=30,
)


def load(data: bytes, fold: object = lambda values: values) -> object:
    return Unpickler(io.BytesIO(data), len(data), fold).load()


@settings(max_examples=150, deadline=None)
@given(TREES, st.sampled_from((2, 3, 4, 5)))
def test_plain_containers_read_as_pickle_reads_them(value: object, protocol: int) -> None:
    """Reference: a second implementation, Python's pickle."""
    data = pickle.dumps(value, protocol)
    assert load(data) == pickle.loads(data)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_lies_across_windows_and_batches_reads_alike(protocol: int) -> None:
    """Reference: pickle; more items than a batch of 1000, runs of gets, a text over a window."""
    shared = [{"filename": f"{i}.py"} for i in range(400)]
    value = [list(shared) for _ in range(2500)] + ["x" * (CHUNK + 7)]
    data = pickle.dumps(value, protocol)
    assert len(data) > 2 * CHUNK
    *stacks, text = load(data, lambda values: (values["filename"],))
    assert stacks == [[(one["filename"],) for one in shared]] * 2500
    assert text == value[-1]


def test_what_a_dict_folds_to_stands_wherever_it_is_named() -> None:
    """Reference: pickle writes a shared object once and names it by the memo afterwards."""
    one = {"k": 7}
    found = load(pickle.dumps([one, [one], {"again": one}]), lambda d: d.get("k", d))
    assert found == [7, [7], {"again": 7}]


class Evil:
    """Pickles as a call of ``os.system``."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    """Reference: the marker that pickle.loads would leave, and does not."""
    marker = tmp_path / "run"
    data = pickle.dumps({"segments": Evil(marker)}, protocol)
    with pytest.raises(SnapshotError, match=r"GLOBAL.*nothing was run"):
        load(data)
    assert not marker.exists()
    pickle.loads(data)
    assert marker.exists(), "the file is as hostile as it is meant to be"


def body(opcodes: bytes) -> bytes:
    return b"\x80\x04" + opcodes + b"."


HOSTILE = {
    "eval": (body(b"cbuiltins\neval\n(V1+1\ntR"), "GLOBAL"),
    "REDUCE": (body(b")R"), "REDUCE"),
    "INST": (body(b"(ios\nsystem\n"), "INST"),
    "OBJ": (body(b"(o"), "OBJ"),
    "NEWOBJ": (body(b"))\x81"), "NEWOBJ"),
    "NEWOBJ_EX": (body(b")))\x92"), "NEWOBJ_EX"),
    "BUILD": (body(b"}}b"), "BUILD"),
    "EXT1": (body(b"\x82\x01"), "EXT1"),
    "persistent id": (body(b"Pname\n"), "PERSID"),
    "persistent id of the stack": (body(b"NQ"), "BINPERSID"),
    "STACK_GLOBAL": (body(b"\x8c\x02os\x8c\x06system\x93"), "STACK_GLOBAL"),
    "a set": (body(b"\x8f"), "EMPTY_SET"),
    "a bytearray": (body(b"\x96" + struct.pack("<Q", 2**40)), "BYTEARRAY8"),
    "out-of-band buffer": (body(b"\x97"), "NEXT_BUFFER"),
    "an old text opcode": (body(b"I12\n"), "INT"),
    "duplicated values": (body(b"N2"), "DUP"),
    "no opcode": (body(b"\xff"), "0xff"),
    "an integer of a megabyte": (body(b"\x8b" + struct.pack("<i", 2**20) + b"\1" * 64), "integer"),
    "an integer of 255 bytes": (body(b"\x8a\xff" + b"\1" * 255), "integer of 255"),
    "text that claims 2^60 bytes": (body(b"\x8d" + struct.pack("<Q", 2**60) + b"a"), "cut short"),
    "text that claims more than the file": (body(b"X" + struct.pack("<I", 99) + b"a"), "cut short"),
    "deep lists": (body(b"]" * 50_000 + b"a" * 49_999), "nested deeper"),
    "deep marks": (body(b"(" * 5_000), "nested deeper"),
    "wide stack": (body(b"(" + b"N" * 50_000 + b"t"), "values wait"),
    "one value memoized for ever": (body(b"N" + b"\x94" * 10_000), "memoized twice"),
    "a far memo entry": (body(b"Nr" + struct.pack("<I", 2**32 - 1)), "memo entry"),
    "a memo entry that is not there": (body(b"h\x07"), "points at nothing"),
    "gets without end": (body(b"N\x94" + b"h\x00" * 20_000), "values wait"),
    "many lists": (body(b"]\x94" + (b"(" + b"]" * 1000 + b"e") * 100), "too many values"),
    "items for a string": (body(b"\x8c\x01aNa"), "takes none"),
    "keys for a list": (body(b"]NNs"), "takes none"),
    "keys that are lists": (body(b"}]Ns"), "no string"),
    "a key without a value": (body(b"}(\x8c\x01au"), "no string"),
    "containers in a tuple": (body(b"]\x85"), "tuple"),
    "a list in itself, cut": (b"\x80\x04]\x94h\x00a", "cut short"),
    "no mark": (body(b"Nt"), "points at nothing"),
    "nothing on the stack": (body(b""), "points at nothing|containers open"),
    "text that is none": (body(b"\x8c\x01\xff"), "no text"),
    "protocol 1": (b"]q\x00.", "protocol 2 to 5"),
    "protocol 9": (b"\x80\x09N.", "protocol 2 to 5"),
    "empty": (b"", "protocol 2 to 5"),
    "data behind the end": (body(b"N") + b"N.", "follow the pickle's end"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_their_reason(name: str) -> None:
    """Reference: pickletools' description of each opcode; the limits in the module."""
    data, reason = HOSTILE[name]
    with pytest.raises(SnapshotError, match=reason):
        load(data)


def test_every_cut_is_noticed() -> None:
    """Reference: no prefix of a pickle is one."""
    data = pickle.dumps({"segments": [{"a": (0, 1), "b": 2**40, "c": 1.5, "d": "text"}] * 3})
    for end in range(len(data)):
        with pytest.raises(SnapshotError):
            load(data[:end])


def test_memo_and_shared_values_stay_within_a_file_s_allowance() -> None:
    """Reference: the allowance, 50,000 values and one for each 32 bytes; this has one for 10."""
    texts = b"".join(
        b"(" + b"".join(b"\x8c\x08%08d" % (1000 * i + j) for j in range(1000)) + b"e"
        for i in range(120)
    )
    with pytest.raises(SnapshotError, match="too many values"):
        load(body(b"]" + texts))


def test_fold_sees_each_dict_once_complete() -> None:
    """Reference: pickle fills an inner dict before the outer one."""
    seen: list[dict[str, object]] = []

    def fold(values: Dict) -> object:
        seen.append(dict(values))
        return values

    load(pickle.dumps({"a": {"b": 1}}), fold)
    assert seen == [{"b": 1}, {"a": {"b": 1}}]
