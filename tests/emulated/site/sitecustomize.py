"""Puts `HostKernels` under every process that takes the CUDA backend up; on PYTHONPATH."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path

BACKEND = "jobs.backend.cuda"


class _AfterBackend(MetaPathFinder, Loader):
    """Loads the backend as ever, then starts the kernels."""

    def find_spec(self, name, path=None, target=None):
        if name != BACKEND:
            return None
        sys.meta_path.remove(self)
        self._found = importlib.util.find_spec(name)
        return importlib.util.spec_from_loader(name, self, origin=self._found.origin)

    def create_module(self, spec):
        return importlib.util.module_from_spec(self._found)

    def exec_module(self, module):
        self._found.loader.exec_module(module)
        sys.path.insert(0, str(Path(__file__).parent.parent))
        from host_kernels import HostKernels

        HostKernels().__enter__()
        if importlib.util.find_spec("transformer_engine") is not None:
            import te_kernels

            te_kernels.install()


sys.meta_path.insert(0, _AfterBackend())
