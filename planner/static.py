"""Static bytes: what a rank holds whatever the batch: weights, gradients, optimizer states.

They lie inside PyTorch, below the working set of a call, and follow from the model, the topology
and the step alone, so that no table of copies is asked. Moments of Adam are made by the first
optimizer step, not before; a run that resumes has them from the start, and holds what it loads
twice for a while.
"""

from dataclasses import dataclass
from functools import lru_cache

from planner.dense_adapters import layer_width
from planner.model import Model
from planner.parameters import LayerParameters, layer, mtp_layer, norm
from planner.stages import stage_of
from planner.step import Step
from planner.stubs import stub_elements
from planner.topology import Topology
from planner.units import Bytes, align_up, ceil_div

FP32 = 4

WORKSPACE = 32 * 2**20
"""cuBLAS workspace on Hopper, bytes: one for each handle and stream. PyTorch has a handle for each
thread that multiplies: the caller's in forward, autograd's in backward."""

TE_WORKSPACE = WORKSPACE + 1024
TORCH_HANDLES = 2
TE_STREAMS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Parameters on one rank, in elements.

    Parameters
    ----------
    dense
        All but routed experts: data parallelism (with context parallelism) copies them.
    experts
        Routed experts: expert data parallelism copies them.
    adapters, dense_adapters
        LoRA matrices of the routed experts, and of all else that has any.
    projections
        Of ``dense``, those of projections.
    """

    dense: int
    experts: int
    adapters: int
    dense_adapters: int = 0
    projections: int = 0

    @property
    def total(self) -> int:
        """All parameters of the rank."""
        return self.dense + self.experts + self.adapters + self.dense_adapters


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticLine:
    """One kind of static bytes on one rank."""

    term: str
    what: str
    source: str
    bytes: Bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Static bytes of one rank.

    Parameters
    ----------
    held
        The parameters they belong to.
    lines
        Every kind, as it stands from the end of the first optimizer step on.
    """

    held: Held
    lines: tuple[StaticLine, ...]

    def of(self, term: str) -> Bytes:
        """Bytes of one kind (0: the rank has none)."""
        return Bytes(sum(line.bytes for line in self.lines if line.term == term))

    @property
    def resident_bytes(self) -> Bytes:
        """Bytes between steps, from the end of the first optimizer step on."""
        return Bytes(sum(line.bytes for line in self.lines))

    @property
    def first_bytes(self) -> Bytes:
        """Bytes before the first optimizer step of a fresh run: no moments of Adam yet."""
        return Bytes(self.resident_bytes - self.of("optimizer.moments"))

    @property
    def loading_bytes(self) -> Bytes:
        """Peak of a resume: the optimizer's states beside the ones that are being loaded."""
        states = self.of("optimizer.moments") + self.of("optimizer.master")
        return Bytes(self.resident_bytes + states)


def static_bytes(model: Model, topology: Topology, step: Step, pp_rank: int = 0) -> Static:
    """Return what the ranks of one pipeline stage hold whatever the batch.

    With adapters the base is frozen: it has weights only. The distributed optimizer divides master
    weights and moments over dp·cp, those of experts over edp; fp32 weights are their own master.
    """
    held = held_parameters(model, topology, step, pp_rank)
    adapting = step.lora_rank > 0
    dense, experts = (
        (held.dense_adapters, held.adapters) if adapting else (held.dense, held.experts)
    )
    shards, expert_shards = 1, 1
    if step.distributed_optimizer:
        shards, expert_shards = topology.dp * topology.cp, topology.edp
    states = ceil_div(dense, shards) + ceil_div(experts, expert_shards)
    gradient = FP32 if step.gradient_fp32 else step.itemsize
    saved = step.itemsize - 1 if step.fp8 and step.fp8_weights == "own" else 0
    moments = ceil_div(2 * states * FP32 * (100 - step.offload_percent), 100)
    lines = (
        (
            "weights.dense",
            "weights, all but routed experts",
            held.dense * step.itemsize - held.projections * saved,
        ),
        ("weights.experts", "weights of routed experts", held.experts * (step.itemsize - saved)),
        (
            "weights.eight_bit",
            "copies of projections in eight bits, and their transposes",
            2 * (held.projections + held.experts) if step.fp8 and not saved else 0,
        ),
        (
            "weights.adapters",
            "adapters",
            (held.adapters + held.dense_adapters) * step.itemsize,
        ),
        ("gradients.main", "gradients of what is trained", (dense + experts) * gradient),
        (
            "optimizer.master",
            "fp32 copy of what is trained",
            0 if step.itemsize == FP32 else states * FP32,
        ),
        ("optimizer.moments", "Adam's two moments, from the first step on", moments),
        ("workspaces.cublas", "cuBLAS workspaces", _workspaces(model, step)),
        (
            "workspaces.stubs",
            "one tensor of each weight's shape in place of its gradient",
            0 if adapting else _stubs(model, topology, step, pp_rank),
        ),
    )
    return Static(
        held=held,
        lines=tuple(
            StaticLine(term=term, what=what, source=SOURCES[term.partition(".")[0]], bytes=Bytes(n))
            for term, what, n in lines
            if n
        ),
    )


def _workspaces(model: Model, step: Step) -> int:
    """Workspaces of PyTorch's handles and of Transformer Engine's streams, on a CUDA device."""
    if step.device != "cuda":
        return 0
    streams = TE_STREAMS if model.is_moe else 1
    return TORCH_HANDLES * WORKSPACE + streams * TE_WORKSPACE


def _stubs(model: Model, topology: Topology, step: Step, pp_rank: int) -> int:
    if step.device != "cuda" or not step.gradient_fusion:
        return 0
    stage = stage_of(model.num_layers, topology, pp_rank, step.microbatches)
    linear, moe = frozenset(model.linear_attention_layers), frozenset(model.moe_layers)
    kinds = {(index in linear, index in moe) for index in stage.layers}
    mtp_layers = model.mtp_layers if stage.last else 0
    return stub_elements(model, topology, kinds, mtp_layers) * step.itemsize


SOURCES = {
    "workspaces": "published planner: Transformer Engine's 5 x (32 MiB + 1 KiB) with grouped "
    "experts; PyTorch's 32 MiB on Hopper for each of two handles; Transformer Engine's "
    "get_dummy_wgrad, which keeps one tensor of each shape",
    "weights": "derivation: the published architectures, counted exactly",
    "gradients": "Megatron-core's contiguous gradient buffer: fp32 where gradients are summed so",
    "optimizer": "Megatron-core's distributed optimizer; measured: the second iteration's peak "
    "exceeds the first's by 8 B a parameter and rank (case M03); offload takes moments, 8 of 12 B "
    "(case M10)",
}


@lru_cache(maxsize=1024)
def held_parameters(model: Model, topology: Topology, step: Step, pp_rank: int) -> Held:
    """Count the parameters of one pipeline stage's ranks."""
    stage = stage_of(model.num_layers, topology, pp_rank, step.microbatches)
    linear, moe = frozenset(model.linear_attention_layers), frozenset(model.moe_layers)
    kinds: dict[tuple[bool, bool], int] = {}
    for index in stage.layers:
        kind = (index in linear, index in moe)
        kinds[kind] = kinds.get(kind, 0) + 1
    parts = [(layer(model, linear=a, moe=b), count) for (a, b), count in kinds.items()]
    if stage.last and model.mtp_layers:
        parts.append((mtp_layer(model), model.mtp_layers))
    dense = sum(_dense(part, model, topology) * count for part, count in parts)
    table = _table(model, topology, step)
    has_table = stage.first or (stage.last and (model.tied_embeddings or model.mtp_layers > 0))
    dense += table if has_table else 0
    dense += table if stage.last and not model.tied_embeddings else 0
    dense += model.position_embeddings * model.hidden if stage.first else 0
    dense += norm(model) if stage.last else 0
    local = model.num_experts // topology.ep
    moe_layers = sum(count for part, count in parts if part.experts)
    adapter = local * step.lora_rank * _adapter_width(model, topology)
    return Held(
        dense=dense,
        projections=sum(_projections(part, model, topology) * count for part, count in parts),
        experts=sum(_experts(part, topology) * local * count for part, count in parts),
        adapters=moe_layers * adapter,
        dense_adapters=step.lora_rank
        * sum(
            layer_width(model, topology.tp, linear=a, moe=b) * count
            for (a, b), count in kinds.items()
        )
        if step.adapters == "all"
        else 0,
    )


def _projections(part: LayerParameters, model: Model, topology: Topology) -> int:
    kv = ceil_div(part.kv, min(topology.tp, model.num_kv_heads))
    return ceil_div(part.split, topology.tp) + kv


def _dense(part: LayerParameters, model: Model, topology: Topology) -> int:
    return _projections(part, model, topology) + part.copied


def _experts(part: LayerParameters, topology: Topology) -> int:
    if not part.experts:
        return 0
    return ceil_div(part.expert, topology.etp) + part.expert_copied


def _adapter_width(model: Model, topology: Topology) -> int:
    ins = 2 if model.gated_mlp else 1
    return 2 * model.hidden + (1 + ins) * model.expert_hidden // topology.etp


def _table(model: Model, topology: Topology, step: Step) -> int:
    columns = align_up(model.vocab, step.vocab_multiple * topology.tp)
    return columns // topology.tp * model.hidden
