"""Measure what a frame of a figure costs in a real browser: `python -m benchmarks.frames`.

A scene of the figures' library with 40 elements. In each frame a value flies, and ten boxes get a new text and outline.
Chromium draws as fast as it can, without a GPU, so the time between two frames is what a frame costs: script,
layout and painting. design.md allows 16 ms.
"""

from __future__ import annotations

import platform
import statistics
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

import hookscope.widgets
from hookscope_course.figures.kit import KIT
from tests.shared.lab import CHROMIUM, CHROMIUM_FLAGS

ELEMENTS, FRAMES, LIMIT = 40, 600, 16.0
_SCENE = """async ([elements, frames]) => {
    const svg = scene([1000, 600], "40 elements");
    const place = (at, row) => [60 + 98 * at, 60 + 150 * row];
    const boxes = [], parts = [];
    for (let at = 0; at < 10; at++) {
        const made = box([...place(at, 0), 80, 60], `box ${at}`, at % 2 ? "back" : "forth", 14);
        boxes.push(made);
        parts.push(made.element);
    }
    for (let at = 0; at < 10; at++) parts.push(rail([place(at, 1), place(at, 2)], at % 2 ? "back" : "forth"));
    for (let at = 0; at < 10; at++) {
        const [x, y] = place(at, 3);
        parts.push(slot({ at: [x, y], lines: ["a place"], text: [x, y + 34], anchor: "middle" }, 16, 12));
    }
    for (let at = 0; at < 9; at++) {
        const made = peg(16, 14);
        move(made.element, place(at, 3));
        parts.push(made.element);
    }
    const flying = token(14);
    parts.push(flying.element);
    if (parts.length !== elements) throw new Error(`${parts.length} elements`);
    svg.append(...parts);
    const root = h("div", { class: "hookscope" }, h("div", { class: "sc-figure" }, svg));
    document.body.replaceChildren(root);
    const times = [];
    let before = await new Promise(requestAnimationFrame);
    for (let turn = 0; turn < frames; turn++) {
        move(flying.element, [50 + (turn * 7) % 900, 300 + 100 * Math.sin(turn / 20)]);
        boxes.forEach(({ set }, at) => set(`${turn + at}`, { changed: (turn + at) % 3 === 0, now: turn % 10 === at }));
        const now = await new Promise(requestAnimationFrame);
        times.push(now - before);
        before = now;
    }
    return times;
}"""


def frame_times() -> tuple[list[float], float]:
    """Milliseconds from each frame to the next, and those that the page's own thread works in a frame."""
    widgets = Path(str(hookscope.widgets.__file__)).parent
    flags = [*CHROMIUM_FLAGS, "--disable-frame-rate-limit", "--disable-gpu-vsync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for style in (widgets / "common.css", KIT / "scene.css"):
            page.add_style_tag(path=style)
        page.add_script_tag(content=(widgets / "common.js").read_text() + (KIT / "scene.js").read_text())
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})  # what other programs take does not count

        def worked() -> float:
            found = session.send("Performance.getMetrics")["metrics"]
            return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

        before = worked()
        times: list[float] = page.evaluate(_SCENE, [ELEMENTS, FRAMES])
        own = 1000 * (worked() - before) / FRAMES
        browser.close()
    return times[20:], own  # the first frames draw the scene


def main() -> int:
    """Print the figures; return 1 if a usual frame takes longer than it may."""
    if CHROMIUM is None:
        print("no chromium on this machine; on Debian: apt-get install chromium", file=sys.stderr)
        return 2
    found, own = frame_times()
    times = sorted(found)
    median, most = statistics.median(times), times[int(0.95 * len(times))]
    print(f"{ELEMENTS} elements, {len(times)} frames, {platform.machine()}, no GPU:")
    print(
        f"from frame to frame: median {median:.1f} ms, 95 of 100 at most {most:.1f} ms, the longest {times[-1]:.1f} ms"
    )
    print(f"the page's own thread works {own:.1f} ms in a frame")
    return int(median > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
