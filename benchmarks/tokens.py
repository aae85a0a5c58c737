"""How long a learner waits in the token picker, at 12 layers, 12 heads and 64 tokens: ``python -m benchmarks.tokens``.

The model is a GPT-2 in its smallest size, made from its configuration. Measured is from a key that is pressed on the
page until the widget shows the answer, and its pictures are decoded, in a real JupyterLab. Before each key the page is
left alone for a third of a second, as by somebody who looks at what it shows: after an answer JupyterLab is busy for a
while with matters of its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.shared.lab import Lab, running_browser, running_lab

_MODEL = """
import torch, transformers
from hookscope.widgets import TokenPicker
torch.manual_seed(0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
picker = TokenPicker(model, torch.randint(0, 50257, (1, 64)))
"""
_PICKS = {
    "a token, with lines": ("lines", ".tk-map", "ArrowLeft"),
    "a layer, with lines": ("lines", ".tk-map", "ArrowUp"),
    "a token, with the map of a head": ("map", ".tk-map", "ArrowLeft"),
    "a layer, with the map of a head": ("map", ".tk-map", "ArrowUp"),
}
_WAIT = """
async ([root, key]) => {
  const stage = document.querySelector(root).closest("[data-state]");
  const start = performance.now();
  document.querySelector(root).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  if (stage.dataset.state !== "busy") throw new Error("nothing was asked");
  while (stage.dataset.state !== "ready") {
    if (performance.now() - start > 20000) throw new Error("no answer");
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  await Promise.all([...stage.querySelectorAll("img[src]")].map((image) => image.decode()));
  return performance.now() - start;
}
"""
_SHOW = """
async (value) => {
  const stage = document.querySelector(".tk-map").closest("[data-state]");
  const select = [...stage.querySelectorAll("select")].find((one) => one.querySelector("[value=norm]"));
  const start = performance.now();
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
  while (stage.dataset.state !== "ready") await new Promise((resolve) => setTimeout(resolve, 1));
  await Promise.all([...stage.querySelectorAll("img[src]")].map((image) => image.decode()));
  return performance.now() - start;
}
"""


def waits(rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each kind of pick; the first of each, for which everything is loaded, apart."""
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_browser() as browser,
        running_lab(Path(folder), browser) as lab,
    ):
        lab.scratch("tokens", _MODEL, "picker")
        lab.page.locator(".tk-map").wait_for()
        for name, (look, root, key) in _PICKS.items():
            lab.kernel(f"picker.look, picker.token, picker.layer = {look!r}, 63, picker._layers[-1]")
            found[name] = statistics.median([_one(lab, root, key) for _ in range(min(rounds, 10) + 1)][1:])
        shows = ["norm", "change", "next word", "final word"]
        times = []
        for number in range(rounds + 1):
            lab.settled()
            times.append(float(lab.page.evaluate(_SHOW, shows[number % 4])))
        found["another map of layers and tokens"] = statistics.median(times[1:])
    return found


def _one(lab: Lab, root: str, key: str) -> float:
    _at_rest(lab)
    return float(lab.page.evaluate(_WAIT, [root, key]))


def _at_rest(lab: Lab) -> None:
    lab.settled()
    lab.page.wait_for_timeout(300)


if __name__ == "__main__":
    for name, milliseconds in waits(int(sys.argv[1]) if len(sys.argv) > 1 else 10).items():
        print(f"{milliseconds:6.0f} ms  {name}")
