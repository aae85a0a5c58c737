"""Count the kernels that run beside this one, because each open chapter holds several hundred megabytes."""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

__all__ = ["describe_kernels"]


def describe_kernels(folder: Path) -> str:
    """Say how many kernels a Jupyter server of this folder runs, and how to end them; empty if they are few.

    Args:
        folder: the root of the server.

    """
    count = _count_kernels(folder)
    if count < 2:
        return ""
    return (
        f"{count} kernels are running, one for each page that you opened. Each takes about 600 MB of memory. "
        "If you close the tab of a page, its kernel stops."
    )


def _count_kernels(folder: Path) -> int:
    with suppress(ImportError):
        from jupyter_core.paths import jupyter_runtime_dir

        for file in Path(jupyter_runtime_dir()).glob("jpserver-*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError, HTTPException):
                server = json.loads(file.read_text(encoding="utf-8"))
                if Path(server["root_dir"]).resolve() == folder.resolve():
                    address = f"http://127.0.0.1:{int(server['port'])}{server['base_url']}api/kernels"
                    # Never by way of a proxy: the server is on this machine.
                    opener = build_opener(ProxyHandler({}))
                    with opener.open(f"{address}?token={quote(server['token'])}", timeout=2) as answer:
                        return len(json.load(answer))
    return 0
