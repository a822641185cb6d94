"""Outside: bytes of a rank on a CUDA device that PyTorch's allocator does not hand out.

Each line has an expected figure and an interval. Until they are measured on the machine at hand the
intervals are wide, and the bound takes their upper end. HybridEP's buffers are not here: a price
carries them as growth, since they grow call by call.
"""

from dataclasses import dataclass

from planner.errors import ConfigError
from planner.model import Model
from planner.step import Step
from planner.topology import Topology
from planner.units import GIB, Bytes

MB, MIB = 10**6, 2**20


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure that was seen elsewhere, in bytes (or thousandths), and how far it may be off."""

    expected: int
    low: int
    high: int
    source: str


CONTEXT = Interval(
    520 * GIB // 1000, 300 * GIB // 1000, 900 * GIB // 1000, "pith-train on H100: 0.52 GiB"
)
PAIR = Interval(544 * MB, 50 * MB, 1600 * MB, "NVIDIA/nccl#964: 544 MB for 2 ranks; #864: 1.6 GB")
GROUP = Interval(688 * MB, 50 * MB, 2000 * MB, "NVIDIA/nccl#964: 688 MB for 3 and more; #864: 6 GB")
DEEPEP = Interval(
    441 * MB, 200 * MB, 2000 * MB, "deepseek-ai/DeepEP#434: 429 MB used, 453 MB hinted"
)
CUBLAS = Interval(
    64 * MIB,
    16 * MIB,
    256 * MIB,
    "PyTorch's CUDABlas.cpp: for each handle and stream 32 MiB on Hopper, 8.1 MiB before it; "
    "forward and backward have a handle each, and cuBLASLt its own",
)
"""Workspace, taken from PyTorch's allocator and part of no tensor."""

GROUPED = Interval(
    4 * (32 * MIB + 1024),
    4 * 4 * MIB,
    4 * (32 * MIB + 1024),
    "Transformer Engine 2.13, get_cublas_workspace: for each of four streams 32 MiB and 1 KiB from "
    "Hopper on, 4 MiB before it",
)
"""The same of Transformer Engine's grouped products."""

FRAGMENTS = Interval(
    100, 0, 360, "pith-train's 10 %; case M12: out of memory on 80 GB at a peak of 58.8 GB"
)
"""Thousandths of the bytes inside, static ones included, over a whole run: rounding, and segments
that cannot be reused. What a call that is about to run loses, `planner.fragments` says."""

EXPANDABLE = Interval(20, 0, 60, "case M12: about 59 GB pass; case M29: reserved far nearer")
"""The same with expandable segments."""

FIRST_CALL = ("nccl.", "libraries.", "buffers.")
"""Terms of what a process's first call makes: communicators, workspace, DeepEP's buffers."""

LOW_LATENCY_LIMIT = 32 * GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class OutsideLine:
    """One kind of bytes outside PyTorch on one rank."""

    term: str
    what: str
    expected: Bytes
    low: Bytes
    bound: Bytes
    source: str


@dataclass(frozen=True, slots=True)
class Outside:
    """All bytes outside PyTorch of one rank, growth of HybridEP's buffers left out."""

    lines: tuple[OutsideLine, ...]

    @property
    def expected_bytes(self) -> Bytes:
        """Sum of the expected figures."""
        return Bytes(sum(line.expected for line in self.lines))

    @property
    def low_bytes(self) -> Bytes:
        """Sum of the intervals' lower ends."""
        return Bytes(sum(line.low for line in self.lines))

    def first_call(self) -> "Outside":
        """Return the lines that a process's first call brings, the context being there before."""
        return Outside(tuple(line for line in self.lines if line.term.startswith(FIRST_CALL)))

    @property
    def bound_bytes(self) -> Bytes:
        """Sum of the intervals' upper ends: what admission sets aside."""
        return Bytes(sum(line.bound for line in self.lines))


def communicators(model: Model, topology: Topology) -> tuple[tuple[str, int], ...]:
    """Return Megatron's process groups of more than one rank that a step calls, with their sizes.

    NCCL makes a communicator at the first call on its group, so that a group that is never called
    costs nothing.
    """
    top = topology
    groups = [
        ("world", top.world),
        ("tp", top.tp),
        ("cp", top.cp),
        ("dp·cp", top.dp * top.cp),
        ("pp", top.pp),
        ("tp·pp", top.tp * top.pp if top.tp > 1 and top.pp > 1 else 1),
        ("embedding", 2 if top.pp > 1 and (model.tied_embeddings or model.mtp_layers) else 1),
    ]
    if model.is_moe:
        groups += [
            ("ep", top.ep),
            ("etp", top.etp),
            ("etp·ep", top.etp * top.ep if top.etp > 1 and top.ep > 1 else 1),
            ("edp", top.edp),
            ("etp·ep·pp", top.etp * top.ep * top.pp if top.pp > 1 and top.ep > 1 else 1),
        ]
    return tuple((name, size) for name, size in groups if size > 1)


def nccl_bytes(ranks: int) -> Interval:
    """Return what one communicator of ``ranks`` ranks holds."""
    return PAIR if ranks == 2 else GROUP


def low_latency_bytes(tokens: int, *, hidden: int, num_experts: int) -> Bytes:
    """Bytes of DeepEP's low-latency buffer.

    Parameters
    ----------
    tokens
        Most tokens a rank sends at once.
    num_experts
        Expert columns, redundant ones included.

    Raises
    ------
    ConfigError
        Above the library's limit of 32 GiB.
    """
    row = 2 * hidden + 4 * (hidden // 128)
    size = 4 * num_experts * tokens * row
    if size > LOW_LATENCY_LIMIT:
        most = LOW_LATENCY_LIMIT // (4 * num_experts * row)
        raise ConfigError(
            f"DeepEP's low-latency buffer for {tokens} tokens and {num_experts} experts would take "
            f"{size / GIB:.2f} GiB, above the library's limit of 32 GiB; use at most {most} tokens"
        )
    return Bytes(size)


def outside_bytes(
    model: Model, topology: Topology, step: Step, *, inside: int, expandable: bool = False
) -> Outside:
    """Return what a rank holds outside PyTorch; nothing where the step's device is no CUDA device.

    Parameters
    ----------
    inside
        Peak bytes inside PyTorch, static ones included: what rounding and fragments are a part of.
    expandable
        Whether the allocator uses expandable segments.
    """
    if step.device != "cuda":
        return Outside(())
    lines = [_line("runtime.context", "CUDA context and kernels", CONTEXT)]
    for name, size in communicators(model, topology):
        what = f"NCCL communicator of {size} ranks, made at its first call"
        lines.append(_line(f"nccl.{name}", what, nccl_bytes(size)))
    lines.append(_line("libraries.cublas", "cuBLAS workspace of forward and backward", CUBLAS))
    if step.engine == "te":
        lines += _of_transformer_engine(model, topology)
    if model.is_moe and step.dispatcher_at(topology) == "deepep":
        lines.append(_line("buffers.deepep", "DeepEP's buffers of normal mode", DEEPEP))
    part = EXPANDABLE if expandable else FRAGMENTS
    lines.append(
        OutsideLine(
            term="allocator.fragments",
            what="reserved by PyTorch and not handed out: rounding and fragments",
            expected=Bytes(inside * part.expected // 1000),
            low=Bytes(inside * part.low // 1000),
            bound=Bytes(inside * part.high // 1000),
            source=part.source,
        )
    )
    return Outside(tuple(lines))


def _of_transformer_engine(model: Model, topology: Topology) -> list[OutsideLine]:
    """Lines of its layers: workspace, and communicators of a ring with two neighbours apart."""
    lines = []
    if topology.cp > 2:
        lines += [
            _line(f"nccl.cp {side}", "NCCL communicator with a neighbour in the ring", PAIR)
            for side in ("next", "previous")
        ]
    if model.is_moe:
        what = "workspace of Transformer Engine's grouped products"
        lines.append(_line("libraries.transformer_engine", what, GROUPED))
    return lines


def _line(term: str, what: str, figure: Interval) -> OutsideLine:
    return OutsideLine(
        term=term,
        what=what,
        expected=Bytes(figure.expected),
        low=Bytes(figure.low),
        bound=Bytes(figure.high),
        source=figure.source,
    )
