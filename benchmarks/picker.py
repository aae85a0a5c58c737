"""How long a learner waits: from picking a layer to its new picture, decoded, in a real JupyterLab."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.shared.lab import Lab, running_browser, running_lab

_MODEL = """
import hookscope, torch, torchvision
from hookscope.widgets import LayerPicker
torch.manual_seed(0)
model, x = torchvision.models.resnet18(weights=None).eval(), torch.randn(1, 3, 224, 224)
with hookscope.capture(model) as seen:
    model(x)
picker = LayerPicker(model, x, layer="conv1")
"""
# The way most notebooks do it: a Dropdown, and an Output into which pyplot draws 64 subplots.
_OUTPUT = """
import ipywidgets, matplotlib.pyplot as plt
names = {layers}
choice, place = ipywidgets.Dropdown(options=names, description="Layer"), ipywidgets.Output()
def show(change):
    with place:
        place.clear_output(wait=True)
        maps = seen[change["new"]].output[0, :64].detach()
        figure, axes = plt.subplots(8, 8, figsize=(9, 9))
        for axis, values in zip(axes.flat, maps):
            axis.imshow(values)
            axis.axis("off")
        plt.show()
choice.observe(show, "value")
ipywidgets.VBox([choice, place])
"""
# No batch norm beside its convolution: untrained, it leaves the picture as it is, and nobody could see it change.
LAYERS = ["layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1", "layer2.0.conv1", "layer2.0.conv2", "layer1.1.conv2"]

# Resolves with the milliseconds between `act` and an
# <img> that `root` selects and that has another source and is decoded.
_WATCH = """
async ([root, layer, act]) => {
  const images = () => [...document.querySelectorAll(root)];
  const old = new Set(images().map((image) => image.src));
  const acts = {
    pick: () => [...document.querySelectorAll(".hs-layers [role=option]")]
      .find((row) => row.getAttribute("aria-label").startsWith(layer + ",")).click(),
    drop: () => {
      const select = document.querySelector(".widget-dropdown select");
      select.selectedIndex = [...select.options].findIndex((option) => option.textContent === layer);
      select.dispatchEvent(new Event("change", { bubbles: true }));
    },
  };
  const start = performance.now();
  acts[act]();
  for (;;) {
    const image = images().find((image) => image.src && !old.has(image.src));
    if (image) {
      await image.decode();
      return performance.now() - start;
    }
    if (performance.now() - start > 20000) throw new Error("no new picture");
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
"""


def waits(rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of a pick: with the picker, and with an Output and pyplot; taking turns."""
    ours: list[float] = []
    theirs: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_browser() as browser,
        running_lab(Path(folder), browser) as lab,
    ):
        lab.scratch("latency", _MODEL, "picker", _OUTPUT.format(layers=["conv1", *LAYERS]))
        lab.page.get_by_role("listbox", name="Layers").wait_for()
        lab.page.get_by_role("searchbox", name="Search").fill("conv")  # all of them in sight
        for number in range(rounds + 1):
            layer = LAYERS[number % len(LAYERS)]
            found = (
                _one(lab, ".hs-grid > img", layer, "pick"),
                _one(lab, ".jp-OutputArea img:not(.hs-picture)", layer, "drop"),
            )
            if number:  # the first time everything is loaded
                ours.append(found[0])
                theirs.append(found[1])
    return statistics.median(ours), statistics.median(theirs)


def _one(lab: Lab, root: str, layer: str, act: str) -> float:
    lab.page.locator(".hs-layers" if act == "pick" else ".widget-dropdown").scroll_into_view_if_needed()
    lab.settled()  # the notebook has drawn what has come into sight
    waited = float(lab.page.evaluate(_WATCH, [root, layer, act]))
    lab.settled()
    return waited
