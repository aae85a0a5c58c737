"""Whose server is idle loses it, and nothing of the work; who runs a long cell is not idle."""

from __future__ import annotations

import time

import pytest

from hub.ending import processes_of
from hub.spawner import COURSE
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub

HUB = {"IDLE": "1"}
SILENT = "import time\nbegun = time.monotonic()\nwhile time.monotonic() < begun + {}: time.sleep(1)\nprint('done')"


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
    with anna.connected(anna.kernel()) as cells:
        assert cells.run("print(1)") == "1"
    until(lambda: not list(processes_of(user)), "the end of her server", 300, every=1)
    assert "What she wrote" in (hub.home(anna.name) / COURSE / name).read_text()
    time.sleep(max(0.0, 170 - (time.monotonic() - began)))  # nearly three times what is idle, with no browser there
    assert ben.up()
    with ben.connected(kernel, "long") as cells:
        assert cells.printed(number) == "done"
    anna.open()
    assert anna.notebook(name)["cells"][0]["source"] == "# What she wrote"
