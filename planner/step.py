"""Step: what a training step does with a batch, beside the model and the topology."""

from dataclasses import dataclass

from planner.errors import ConfigError, require_choice, require_int
from planner.topology import Topology

ITEMSIZE = {"bf16": 2, "fp32": 4}
DISPATCHERS = ("auto", "alltoall", "allgather", "hybridep", "deepep")
RECOMPUTE = ("full", "selective", "block", "none")
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
ATTENTION = ("flash", "unfused")
HEADS = ("chunked", "whole", "fused")
ADAPTERS = ("experts", "all")
DEVICES = ("cpu", "cuda")
FP8_WEIGHTS = ("copies", "own")
ENGINES = ("own", "te")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Settings of one forward/backward.

    Parameters
    ----------
    dtype
        Activation and weight dtype, ``bf16`` or ``fp32``.
    recompute
        ``full``: every layer is a checkpoint of its own (Megatron: full, uniform, one layer);
        ``block``: the first ``recompute_layers`` layers of each stage are; ``selective``: the
        modules of ``recompute_modules`` are in every layer; ``none``: every activation is kept.
    recompute_layers
        With ``full``: layers of one checkpoint; with ``block``: checkpointed layers of a stage.
    recompute_modules
        With ``selective``: Megatron's names of the recomputed modules.
    lora_rank
        Rank of the adapters over a frozen base; 0 trains everything.
    adapters
        Where they lie: on the routed ``experts``' FC1 and FC2; or on ``all`` projections of
        attention, Gated DeltaNet and shared experts beside them.
    dispatcher
        Token dispatcher; ``auto`` is ``alltoall`` at EP1 and ``hybridep`` above.
    dispatcher_ep
        Expert parallelism the dispatcher was built for, where it is known apart from the topology.
    head_chunk
        Tokens per chunk of the log-probability head.
    head
        ``chunked``, or ``whole``: logits of all tokens at once, fp32 beside bf16; ``fused``: all at
        once in bf16, whose gradient takes their place (Transformer Engine's loss).
    attention, sequence
        ``unfused`` attention keeps scores of every pair of positions, for sequences of
        ``sequence`` tokens; ``flash`` keeps none.
    dropout
        Whether attention and the stream have dropout, whose masks are kept.
    sequence_parallel
        Whether tensor parallelism divides the stream along the sequence too.
    microbatches
        Calls of one optimizer step on each replica: what a pipeline may have in flight.
    distributed_optimizer
        Whether master weights and moments are divided over data parallelism.
    offload_percent
        Part of Adam's moments that lies in host memory, 0 to 100.
    offload_activations
        Whether activations are sent to host memory: no table prices it, and a price says so.
    fp8, fp8_weights
        Whether projections work in eight bits, and their weights: ``copies`` are kept of each and
        of its transpose beside it, or it is eight bits of its ``own`` and turned when needed.
    gradient_fp32
        Whether gradients of trained weights are kept in fp32.
    gradient_fusion
        Whether matrix products add weight gradients to their buffer by themselves (Megatron's
        gradient accumulation fusion).
    vocab_multiple
        What the vocabulary is padded to a multiple of, for each tensor-parallel rank.
    fused_activation
        Whether the gated activation is one operator, which keeps its input alone.
    capacity_factor
        Where every expert's input is padded to a capacity: its factor on an even share.
    nvlink_ranks
        Ranks of one NVLink domain: a larger expert group has buffers between domains.
    release_dispatcher_state
        Whether each layer's dispatcher lets go of what it keeps once the layer's backward is over;
        Megatron's keep it until they run again, as all do where there is no backward.
    compiled
        Whether each layer is compiled (``torch.compile``): a cold call may then leave garbage that
        only the collector frees.
    collect_compile_garbage
        Whether it is collected once, after the first layer was recomputed.
    device
        ``cuda`` or ``cpu``: whether bytes outside PyTorch are counted.
    engine
        Whose routed experts and core attention run: the ``own`` of `jobs.model`, or ``te``,
        Transformer Engine's grouped layers and attention (around the ring of context parallelism).
    """

    dtype: str = "bf16"
    recompute: str = "full"
    lora_rank: int = 8
    adapters: str = "experts"
    dispatcher: str = "auto"
    dispatcher_ep: int | None = None
    head_chunk: int = 512
    recompute_layers: int = 1
    recompute_modules: tuple[str, ...] = ()
    head: str = "chunked"
    attention: str = "flash"
    sequence: int = 0
    dropout: bool = False
    sequence_parallel: bool = True
    microbatches: int = 1
    distributed_optimizer: bool = True
    offload_percent: int = 0
    offload_activations: bool = False
    fp8: bool = False
    fp8_weights: str = "copies"
    gradient_fp32: bool = True
    gradient_fusion: bool = True
    vocab_multiple: int = 1
    fused_activation: bool = True
    capacity_factor: float | None = None
    nvlink_ranks: int = 8
    release_dispatcher_state: bool = False
    compiled: bool = False
    collect_compile_garbage: bool = False
    device: str = "cpu"
    engine: str = "own"

    def __post_init__(self) -> None:
        require_choice("Step", "dtype", self.dtype, tuple(ITEMSIZE))
        require_choice("Step", "recompute", self.recompute, RECOMPUTE)
        require_choice("Step", "dispatcher", self.dispatcher, DISPATCHERS)
        require_int("Step", "lora_rank", self.lora_rank, least=0)
        require_int("Step", "head_chunk", self.head_chunk)
        if self.dispatcher_ep is not None:
            require_int("Step", "dispatcher_ep", self.dispatcher_ep)
        require_choice("Step", "adapters", self.adapters, ADAPTERS)
        require_choice("Step", "head", self.head, HEADS)
        require_choice("Step", "attention", self.attention, ATTENTION)
        require_choice("Step", "device", self.device, DEVICES)
        require_choice("Step", "fp8_weights", self.fp8_weights, FP8_WEIGHTS)
        require_choice("Step", "engine", self.engine, ENGINES)
        for name in ("recompute_layers", "microbatches", "vocab_multiple", "nvlink_ranks"):
            require_int("Step", name, getattr(self, name))
        require_int("Step", "sequence", self.sequence, least=0)
        require_int("Step", "offload_percent", self.offload_percent, least=0)
        if self.offload_percent > 100:
            raise ConfigError(f"Step.offload_percent = {self.offload_percent}; at most 100")
        self._require_modules()
        self._require_attention()

    def _require_modules(self) -> None:
        for module in self.recompute_modules:
            require_choice("Step", "recompute_modules entry", module, MODULES)
        object.__setattr__(self, "recompute_modules", tuple(self.recompute_modules))
        if (self.recompute == "selective") != bool(self.recompute_modules):
            raise ConfigError(
                f"Step.recompute = {self.recompute!r} and recompute_modules = "
                f"{self.recompute_modules} do not go together; name modules with 'selective' only"
            )

    def _require_attention(self) -> None:
        if self.attention == "unfused" and not self.sequence:
            raise ConfigError(
                "Step.attention is unfused, whose scores grow with the square of a sequence; "
                "give Step.sequence, the tokens of one sequence"
            )
        factor = self.capacity_factor
        if factor is not None and not (isinstance(factor, (int, float)) and factor > 0):
            raise ConfigError(f"Step.capacity_factor must be above 0; got {factor!r}")

    @property
    def itemsize(self) -> int:
        """Bytes of one activation element."""
        return ITEMSIZE[self.dtype]

    def dispatcher_at(self, topology: Topology) -> str:
        """Return the dispatcher that runs under ``topology``, with ``auto`` resolved.

        Raises
        ------
        ConfigError
            When the dispatcher was built for another EP, or HybridEP is asked for at EP·ETP = 1
            (Megatron's flex dispatcher asserts TP·EP > 1).
        """
        chosen = self.dispatcher
        if chosen == "auto":
            chosen = "hybridep" if topology.ep * topology.etp > 1 else "alltoall"
        if self.dispatcher_ep is not None and self.dispatcher_ep != topology.ep:
            raise ConfigError(
                f"the {chosen} dispatcher was built for ep = {self.dispatcher_ep}, "
                f"the topology has ep = {topology.ep}; "
                "build it for the topology's ep, or set Step.dispatcher_ep to it"
            )
        if chosen in ("hybridep", "deepep") and topology.ep * topology.etp == 1:
            raise ConfigError(
                f"the {chosen} dispatcher needs ep·etp > 1, the topology has 1; "
                "use dispatcher='alltoall' at EP1"
            )
        return chosen
