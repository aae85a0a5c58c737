"""Whose server is idle loses it, and nothing of the work; who runs a long cell is not idle."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.web import Application

from hookscope_course.kernels import activity
from hookscope_course.kernels.settings import over_files
from hub.limits import processes_of
from hub.spawner import COURSE
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub

HUB = {"IDLE": "1"}
SILENT = "import time\nbegun = time.monotonic()\nwhile time.monotonic() < begun + {}: time.sleep(1)\nprint('done')"


def test_a_cell_that_says_nothing_is_a_sign_of_life_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "EVERY", 0.05)

    async def lesson() -> None:
        manager = AsyncMappingKernelManager(config=over_files())
        number = await manager.start_kernel(kernel_name="python3")
        client = manager.get_kernel(number).client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=60)
            times: dict[str, object] = {}
            application = Application(last_activity_times=times)
            activity._load_jupyter_server_extension(SimpleNamespace(kernel_manager=manager, web_app=application))
            await asyncio.sleep(0.5)
            assert not times, "an idle kernel"
            ended = asyncio.ensure_future(client.execute_interactive("import time; time.sleep(1)", timeout=60))
            await asyncio.sleep(0.6)
            assert times, "it runs a cell"
            first = max(times.values())
            await ended
            assert max(times.values()) > first, "it still ran"
            await asyncio.sleep(0.3)
            times.clear()
            await asyncio.sleep(0.3)
            assert not times, "it runs no more"
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(number, now=True)

    asyncio.run(lesson())


@pytest.mark.slow  # a real hub, with users of this machine, and minutes of waiting
def test_who_is_idle_loses_the_server_and_not_the_work_and_a_long_cell_goes_on(
    hub: RunningHub, anna: Learner, ben: Learner
) -> None:
    name = "02_call_order.ipynb"
    notebook = anna.notebook(name)
    notebook["cells"][0]["source"] = "# What she wrote"
    saved = anna.ask("PUT", f"api/contents/{name}", json={"type": "notebook", "content": notebook})
    assert saved.status_code == 200, saved.text
    kernel = ben.kernel()
    with ben.connected(kernel, "long") as cells:
        number = cells.send(SILENT.format(200))
    began, user = time.monotonic(), hub.home(anna.name).stat().st_uid
    until(lambda: f"Culling server {anna.name}" in hub.said.read_text(), "that she is found idle", 200, every=1)
    assert time.monotonic() - began > 45
    until(lambda: not list(processes_of(user)), "the end of her server", 60)
    assert "What she wrote" in (hub.home(anna.name) / COURSE / name).read_text()
    time.sleep(max(0.0, 170 - (time.monotonic() - began)))  # nearly three times what is idle, with no browser there
    assert f"Culling server {ben.name}" not in hub.said.read_text()
    with ben.connected(kernel, "long") as cells:
        assert cells.printed(number) == "done"
    anna.open()
    assert anna.notebook(name)["cells"][0]["source"] == "# What she wrote"
