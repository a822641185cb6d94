"""The Megatron-core model that the ranks run.

Importing this package installs the CPU backend, without which Megatron cannot be imported here.
"""

from jobs.backend import cpu

cpu.install()
