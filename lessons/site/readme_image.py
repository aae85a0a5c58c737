"""Draw docs/picker.png, the animated image at the top of the README, from the real LayerPicker in a real browser.

python -m lessons.site.readme_image
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

from hookscope import samples
from hookscope.widgets import LayerPicker
from lessons.site import widget_recordings

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "picker.png"
MOST = 1_500_000
"""Bytes; a page that is read on a phone loads it."""
STEPS = {"block1": 11, "block2": 5, "block3": 12}
"""The layers that are clicked, and a channel of each."""
HOLD = 1500
"""Milliseconds for each image."""


def main() -> None:
    """Take a screenshot after each click, and write them as one animated PNG."""
    fits = widget_recordings.record_within_limit(LayerPicker(samples.digit_cnn(), samples.digit(5)), "picker")
    assert fits
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        static = Path(folder) / "_static"
        (static / "live").mkdir(parents=True)
        (static / "live" / "picker.js").write_text(fits[0], encoding="utf-8")
        site = Path(widget_recordings.__file__).with_name("site.js").read_text(encoding="utf-8")
        (static / "site.js").write_text(site, encoding="utf-8")
        page_of = Path(folder) / "index.html"
        page_of.write_text(
            '<!doctype html><meta charset="utf-8"><title>LayerPicker</title><style>body { margin: 12px; width: 860px; '
            'font: 14px sans-serif; background: white }</style><div class="live" data-live="picker"></div>'
            '<script src="_static/site.js"></script>',
            encoding="utf-8",
        )
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 884, "height": 640}, device_scale_factor=1.5)
        page.goto(page_of.as_uri())
        picker = page.locator(".hookscope")
        picker.wait_for()
        frames = [*_frames(page, picker)]
        browser.close()
    height = min(frame.height for frame in frames)
    cut = [frame.crop((0, 0, frame.width, height)).quantize(128, dither=Image.Dither.NONE) for frame in frames]
    cut[0].save(TARGET, save_all=True, append_images=cut[1:], duration=HOLD, loop=0, optimize=True)
    size = TARGET.stat().st_size
    print(f"{TARGET.relative_to(ROOT)}: {len(cut)} images, {size:,} bytes")
    assert size < MOST


def _frames(page: Page, picker: Locator) -> list[Image.Image]:
    frames = []
    for name, channel in STEPS.items():
        picker.get_by_role("option", name=f"{name}, ").first.click()
        frames.append(_shot(page))
        picker.get_by_role("button", name=f"channel {channel}, ").click()
        picker.get_by_text(f"Channel {channel}", exact=True).wait_for()
        frames.append(_shot(page))
    return frames[1:] + frames[:1]  # the first one stands still where nothing moves


def _shot(page: Page) -> Image.Image:
    page.mouse.move(0, 0)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


if __name__ == "__main__":
    main()
