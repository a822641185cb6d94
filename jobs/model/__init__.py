"""The Megatron-core model that the ranks run.

Importing this package installs the CPU backend, without which Megatron cannot be imported here,
unless the CUDA backend is installed already.
"""

from jobs import backend

if backend.chosen() is None:
    from jobs.backend import cpu

    cpu.install()
