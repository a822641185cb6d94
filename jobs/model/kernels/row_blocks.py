"""Rows in blocks, so that an operator's scratch in fp32 is bounded whatever its tensors measure.

The fused kernels that the operators stand for read a row and write a row. On a CUDA device ours
take their scratch from the same allocator as everything else: block by block it stays small beside
what they return, and a call's peak stays that of the tensors that a ledger sees.
"""

from collections.abc import Iterator

SCRATCH = 32 * 2**20
"""Bytes that one fp32 copy of a block's rows may take."""


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield runs of rows, each as long as an fp32 copy of ``width`` elements a row allows."""
    step = max(1, SCRATCH // (4 * max(1, width)))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
