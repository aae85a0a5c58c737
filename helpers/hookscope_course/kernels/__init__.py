"""Start kernels in an instant, and in little memory: one process has torch loaded, and each kernel is a fork of it.

    python -m hookscope_course.kernels /run/kernels.sock      # the process that is forked
    with preloaded(folder) as environment: …                  # the same for the length of a block

A kernel of its own takes seconds to import torch, and holds some 350 MB that no other kernel shares. `server` is the
process that forks, `launch` what Jupyter starts in place of a kernel; `spec` tells Jupyter so.
"""

from hookscope_course.kernels.spec import command, preloaded, write_spec

__all__ = ["command", "preloaded", "write_spec"]
