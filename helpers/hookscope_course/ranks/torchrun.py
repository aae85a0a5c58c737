"""torchrun as `ranks.start` starts it: with its store on loopback, where nobody else on the network can reach it.

torchrun's store listens on every interface, whatever `--master-addr` says. If its process already has a store at that
port, torchrun takes that one; so here is one, with a socket on loopback.
"""

from __future__ import annotations

import os
import socket

from torch import distributed
from torch.distributed.run import main

from hookscope_course.ranks.process import HOST


def run() -> None:
    """Open the store on loopback, then do what the command line says."""
    port = int(os.environ["RANKS_STORE_PORT"])
    listening = socket.create_server((HOST, port)).detach()
    kept = distributed.TCPStore(  # type: ignore[attr-defined]
        HOST, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening
    )
    main()
    del kept  # not before


if __name__ == "__main__":
    run()
