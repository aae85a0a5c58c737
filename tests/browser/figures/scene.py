"""What tests do with figures that are drawn as a scene: wait, drag, look for words that touch."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.shared.lab import measure_boxes


def wait_until_still(stage: Locator) -> None:
    """Wait until nothing plays and nothing flies."""
    for player in stage.locator(".sc-player[data-playing]").all():
        expect(player).to_have_attribute("data-playing", "false")
    for scene in stage.locator(".sc-scene").all():
        expect(scene).not_to_have_attribute("data-moves", "true")


def peg(stage: Locator, kind: str) -> Locator:
    """The hook of a kind."""
    return stage.locator(f".sc-peg[data-kind='{kind}']")


def center(part: Locator) -> tuple[float, float]:
    """Where the middle of a part of the page is."""
    [box] = measure_boxes(part)
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(what: Locator, to: tuple[float, float] | Locator, *, drop: bool = True) -> None:
    """Drag something by the mouse, and let it go."""
    mouse, goal = what.page.mouse, center(to) if isinstance(to, Locator) else to
    mouse.move(*center(what))
    mouse.down()
    mouse.move(*goal, steps=8)
    if drop:
        mouse.up()


def height(stage: Locator) -> float:
    """How high a figure is."""
    return measure_boxes(stage)[0]["height"]


def touching(stage: Locator) -> list[str]:
    """Return the words in the scene that overlap others, a hook, or the edge."""
    found: list[str] = stage.locator(".sc-scene").evaluate(
        """(scene) => {
            const rect = (element) => element.getBoundingClientRect();
            const seen = ":scope > text, .sc-slot tspan, .sc-box text, g[aria-hidden] > text:not(.sc-sign)";
            const alone = (text) => !text.closest(".sc-token, .sc-peg") && !text.querySelector("tspan + tspan");
            const texts = [...scene.querySelectorAll(seen)].filter((text) => text.textContent && alone(text));
            const hooks = [...scene.querySelectorAll(".sc-body, .sc-badge circle")]
                .filter((hook) => rect(hook).width);
            const lie = (a, b, c, d) => a < d - 1 && c < b - 1;
            const over = (a, b) =>
                lie(a.left, a.right, b.left, b.right) && lie(a.top, a.bottom - 1, b.top, b.bottom - 1);
            const bad = [];
            texts.forEach((text, at) => {
                const a = rect(text);
                for (const other of texts.slice(at + 1)) {
                    if (text.parentNode === other.parentNode || text.contains(other)) continue;
                    if (over(a, rect(other))) bad.push(`${text.textContent} × ${other.textContent}`);
                }
                for (const hook of hooks) {
                    const b = rect(hook);
                    const [x, y] = [(b.left + b.right) / 2, (b.top + b.bottom) / 2];
                    const across = Math.max(a.left - x, 0, x - a.right);
                    const down = Math.max(a.top + 3 - y, 0, y - a.bottom + 3);
                    if (Math.hypot(across, down) < b.width / 2) bad.push(`${text.textContent} × a hook`);
                }
                const out = a.left < rect(scene).left - 1 || a.right > rect(scene).right + 1;
                if (out) bad.push(`${text.textContent} × the edge`);
            });
            return [texts.length > 20 ? [] : ["few words"], ...bad].flat();
        }"""
    )
    return found
