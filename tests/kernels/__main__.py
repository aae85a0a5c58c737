"""Load torch and what the course needs, then fork a kernel for whoever asks at a socket."""

from __future__ import annotations

import sys

from tests.kernels.server import KernelServer, Request, become


def main() -> None:
    """Serve until this process is asked to stop; a fork of it goes on as what was asked for."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.kernels SOCKET")
    # `-m` puts the folder it was called in first, and no kernel shall import from there.
    sys.path[:] = sys.path[1:]
    request: Request | None = KernelServer(sys.argv[1]).run()
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
