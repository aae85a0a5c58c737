"""Start kernels quickly: one process loads torch, and each kernel of a test run is a fork of it.

    python -m tests.kernels /run/kernels.sock      # the process that is forked
    with preloaded(folder) as environment: …         # the same for the length of a block

A kernel of its own takes seconds to import torch, and holds some 350 MB that no other kernel shares. `server` is the
process that forks, `launch` what Jupyter starts in place of a kernel; `spec` tells Jupyter so.
"""

from tests.kernels.spec import RANKS, preloaded, write_spec

__all__ = ["RANKS", "preloaded", "write_spec"]
