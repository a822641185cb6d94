"""Topology: how many ranks split what, and which rank sits where.

Our names beside Megatron-core's: tp ``tensor_model_parallel_size``, cp ``context_parallel_size``,
ep ``expert_model_parallel_size``, etp ``expert_tensor_parallel_size``, pp
``pipeline_model_parallel_size``, dp the rest of the world. Ranks are numbered as Megatron's default
order ``tp-cp-ep-dp-pp`` does: tp fastest, then cp, then dp, then pp; expert ranks etp fastest, then
ep, then edp.
"""

from dataclasses import dataclass

from planner.errors import ConfigError, require_int


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Degrees of parallelism; world size is pp·dp·cp·tp = pp·edp·ep·etp.

    Parameters
    ----------
    vpp
        Virtual pipeline stages on each rank (Megatron's interleaved schedule).
    stage_layers
        Layers of each pipeline rank where they are uneven; by default as even as can be, the first
        ranks taking one more.

    Raises
    ------
    ConfigError
        When ep·etp does not divide dp·cp·tp, naming the degrees that would work.
    """

    pp: int = 1
    dp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    stage_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for axis in ("pp", "dp", "cp", "tp", "ep", "etp", "vpp"):
            require_int("Topology", axis, getattr(self, axis))
        self._require_stages()
        stage = self.dp * self.cp * self.tp
        if stage % (self.ep * self.etp):
            fits = [str(d) for d in range(1, stage + 1) if stage % (d * self.etp) == 0]
            raise ConfigError(
                f"Topology: ep·etp = {self.ep}·{self.etp} must divide dp·cp·tp = "
                f"{self.dp}·{self.cp}·{self.tp} = {stage}; "
                + (f"ep can be {', '.join(fits)}, or " if fits else "")
                + f"raise dp (dp={self.ep * self.etp} always divides)"
            )

    def _require_stages(self) -> None:
        if self.vpp > 1 and self.pp == 1:
            raise ConfigError(
                f"Topology.vpp = {self.vpp} needs pipeline stages, pp is 1; raise pp or use vpp=1"
            )
        if self.stage_layers is None:
            return
        for layers in self.stage_layers:
            require_int("Topology", "stage_layers entry", layers, least=0)
        if len(self.stage_layers) != self.pp:
            raise ConfigError(
                f"Topology.stage_layers has {len(self.stage_layers)} entries for pp = {self.pp} "
                "ranks; give one a rank"
            )
        if self.vpp > 1:
            raise ConfigError(
                "Topology.stage_layers and vpp > 1 cannot be combined; virtual stages are even"
            )
        object.__setattr__(self, "stage_layers", tuple(self.stage_layers))

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.pp * self.dp * self.cp * self.tp

    @property
    def edp(self) -> int:
        """Copies of each expert shard: expert data parallelism."""
        return self.dp * self.cp * self.tp // (self.ep * self.etp)

    def pp_rank(self, rank: int) -> int:
        """Place of global ``rank`` on the pp axis."""
        return rank // (self.tp * self.cp * self.dp)

    def cp_rank(self, rank: int) -> int:
        """Place of global ``rank`` on the cp axis."""
        return rank // self.tp % self.cp

    def dp_rank(self, rank: int) -> int:
        """Place of global ``rank`` on the dp axis."""
        return rank // (self.tp * self.cp) % self.dp

    def ep_rank(self, rank: int) -> int:
        """Place of global ``rank`` on the ep axis."""
        return rank // self.etp % self.ep

    def expert_group(self, rank: int) -> tuple[int, ...]:
        """Return the global ranks whose tokens meet in ``rank``'s experts (the etp x ep group)."""
        size = self.etp * self.ep
        first = rank // size * size
        return tuple(range(first, first + size))
