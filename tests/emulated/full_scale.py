"""One rank of a full-size cell on the emulated device, computing nothing: ``SPEC OUT``.

The model, the live loop, the ledger and the meters are those of a CUDA rank; routing's sizes come
from the cell's plan, as they do under fake tensors, and weights stay unset.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from no_kernels import NoKernels

from jobs import rank


def plan_ahead() -> None:
    """Let the CUDA rank route as planned and draw no weights."""
    from jobs.backend.fake import PlannedRouting
    from jobs.cuda import live
    from jobs.cuda import rank as cuda_rank
    from jobs.fake_live import plan_of

    class PlannedLoop(live.CudaLoop):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.routing = PlannedRouting(plan_of(self.spec), self.spec.topology, self.rank)
            self.routing.install(self.model)

        def _batch(self, index: int, layout: Any) -> Any:
            tokens = [layout.tokens_of(peer, self.spec.topology) for peer in self.routing.group]
            self.routing.begin(index, tokens)
            return super()._batch(index, layout)

    cuda_rank.CudaLoop = PlannedLoop
    cuda_rank.load_weights = lambda *_: None


def main(spec: Path, out: Path) -> None:
    """Run the rank."""
    from jobs.backend import cuda

    cuda.install()
    plan_ahead()
    with tempfile.TemporaryDirectory() as folder, NoKernels():
        rank.main(spec, out, 0, f"file://{folder}/rendezvous")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
