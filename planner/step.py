"""Step: what a training step does with a batch, beside the model and the topology."""

from dataclasses import dataclass

from planner.errors import ConfigError, require_choice, require_int
from planner.topology import Topology

ITEMSIZE = {"bf16": 2, "fp32": 4}
DISPATCHERS = ("auto", "alltoall", "allgather", "hybridep", "deepep")
RECOMPUTE = ("full", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Settings of one forward/backward.

    Parameters
    ----------
    dtype
        Activation and weight dtype, ``bf16`` or ``fp32``.
    recompute
        ``full``: every layer is a checkpoint of its own (Megatron: full, uniform, one layer);
        ``none``: every activation is kept.
    lora_rank
        Rank of the adapters on the experts' FC1 and FC2 over a frozen base; 0 trains everything.
    dispatcher
        Token dispatcher; ``auto`` is ``alltoall`` at EP1 and ``hybridep`` above.
    dispatcher_ep
        Expert parallelism the dispatcher was built for, where it is known apart from the topology.
    head_chunk
        Tokens per chunk of the log-probability head.
    """

    dtype: str = "bf16"
    recompute: str = "full"
    lora_rank: int = 8
    dispatcher: str = "auto"
    dispatcher_ep: int | None = None
    head_chunk: int = 512

    def __post_init__(self) -> None:
        require_choice("Step", "dtype", self.dtype, tuple(ITEMSIZE))
        require_choice("Step", "recompute", self.recompute, RECOMPUTE)
        require_choice("Step", "dispatcher", self.dispatcher, DISPATCHERS)
        require_int("Step", "lora_rank", self.lora_rank, least=0)
        require_int("Step", "head_chunk", self.head_chunk)
        if self.dispatcher_ep is not None:
            require_int("Step", "dispatcher_ep", self.dispatcher_ep)

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
