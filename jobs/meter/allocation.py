"""Allocation: one storage that the ledger follows, from its birth to its death.

Storages are counted in blocks of 512 bytes, the granularity in which PyTorch's CUDA caching
allocator hands out memory (``kMinBlockSize`` in torch's ``c10/core/AllocatorConfig.h``, applied by
``round_size`` in ``c10/cuda/CUDACachingAllocator.cpp``). An empty storage takes no block there and
none here.
"""

from dataclasses import dataclass

from planner.units import Bytes, align_up

BLOCK = 512

PHASES = ("between", "forward", "recompute", "backward")


def block_bytes(nbytes: int) -> Bytes:
    """Return the bytes that a storage of ``nbytes`` takes from the caching allocator."""
    return Bytes(align_up(nbytes, BLOCK))


@dataclass(slots=True, eq=False)
class Allocation:
    """One storage, in whole blocks, with the tags of the operator that made it.

    Parameters
    ----------
    number
        Place in the ledger's order of allocations; grows through all calls of a ledger.
    nbytes
        Blocks that it takes, in bytes.
    call
        Index of the call that allocated it; ``None`` for storages registered as resident.
    phase
        ``forward``, ``recompute`` (a checkpointed region run again), ``backward``, or ``between``
        for what was registered.
    module
        Dotted path of the innermost module at work ("" outside every attached module); for a
        resident storage, the name it was registered under; for the gradient that an
        ``AccumulateGrad`` node allocates, the parameter's module.
    op
        Operator, without its ``aten::`` namespace and ``.default`` overload; what was registered
        has its kind here (``parameter``, ``buffer``, ``input``).
    node
        Name of the autograd node at work, "" in forward.
    shape, dtype
        Of the first tensor seen on the storage.
    gradient_of
        Name of the parameter whose ``.grad`` the storage became, "" for all others.
    died
        Number of the last allocation made before its death; ``None`` while it lives.
    """

    number: int
    nbytes: int
    call: int | None
    phase: str
    module: str
    op: str
    node: str
    shape: tuple[int, ...]
    dtype: str
    gradient_of: str = ""
    died: int | None = None

    def alive_at(self, number: int) -> bool:
        """Whether it was live just after allocation ``number`` was made."""
        return self.number <= number and (self.died is None or self.died >= number)

    def label(self) -> str:
        """One line for people: where it was made, by what, and its shape."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        grad = f" = {self.gradient_of}.grad" if self.gradient_of else ""
        return f"{self.phase} {self.module or '(top)'} {self.op} {shape} {self.dtype}{grad}"
