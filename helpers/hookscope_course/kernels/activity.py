"""Let a cell that runs be a sign of life: Jupyter hears what a kernel says, and a long cell may say nothing.

jupyter lab --ServerApp.jpserver_extensions=hookscope_course.kernels.activity=True
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tornado.ioloop import PeriodicCallback

__all__: list[str] = []

EVERY = 5  # seconds


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Look now and then whether a cell runs, as long as the server does."""
    kernels, times = server.kernel_manager, server.web_app.settings["last_activity_times"]

    def look() -> None:
        if any(kernels.get_kernel(number).execution_state == "busy" for number in kernels.list_kernel_ids()):
            times["a cell that runs"] = datetime.now(UTC)

    PeriodicCallback(look, EVERY * 1000).start()
