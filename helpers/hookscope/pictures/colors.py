"""The colors that have a meaning: one file, `palette.toml`, for figures in Python and for widgets.

A figure in Python is drawn on white, so it uses the colors of a light page. A widget follows the page.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

_PALETTE: dict[str, tuple[str, str]] = {
    name: (light, dark)
    for name, (light, dark) in tomllib.loads(
        (Path(__file__).parents[1] / "palette.toml").read_text(encoding="utf-8")
    ).items()
}
LIGHT = {name: light for name, (light, _) in _PALETTE.items()}
"""The colors on a light page, by their names in `palette.toml`."""
DARK = {name: dark for name, (_, dark) in _PALETTE.items()}
"""The colors on a dark page."""

PAGE, FRAME, DOOR, LINE, INK, MUTED = (LIGHT[name] for name in ("page", "frame", "door", "line", "ink", "muted"))
FORWARD, FORWARD_SOFT = LIGHT["forward"], LIGHT["forward-soft"]
BACKWARD, BACKWARD_SOFT = LIGHT["backward"], LIGHT["backward-soft"]
FIRE, SHADE = LIGHT["fire"], LIGHT["shade"]
HOOK, HOOK_SOFT = LIGHT["hook"], LIGHT["hook-soft"]
CHANGED, CHANGED_SOFT = LIGHT["changed"], LIGHT["changed-soft"]
RIGHT, WRONG, WRONG_SOFT = LIGHT["right"], LIGHT["wrong"], LIGHT["wrong-soft"]
ACCENT = LIGHT["accent"]
DATA = tuple(LIGHT[f"data-{number}"] for number in (1, 2, 3, 4))
"""For charts: colors without a meaning."""


def follow_page(name: str) -> str:
    """Return a color for HTML outside of widgets, as CSS that follows the page: light or dark.

    Example:
        >>> follow_page("right")
        'light-dark(#1b6e3a, #8ff0b0)'

    """
    return f"light-dark({LIGHT[name]}, {DARK[name]})"


def to_rgb(color: str) -> tuple[float, float, float]:
    """Return red, green and blue of a color, each from 0 to 1.

    Example:
        >>> to_rgb("#ff0033")
        (1.0, 0.0, 0.2)

    """
    red, green, blue = (value / 255 for value in bytes.fromhex(color[1:]))
    return red, green, blue


def _set_variables(theme: dict[str, str]) -> str:
    return " ".join(f"--hs-{name}: {color};" for name, color in theme.items())


# JupyterLab, Furo and VS Code each say in their own way that the page is dark. Images stay white on a dark page; what
# is drawn on them is inside `.hs-light`.
CSS = f"""\
.hookscope, .hookscope .hs-light {{ {_set_variables(LIGHT)} }}
body:is([data-jp-theme-light="false"], [data-theme="dark"], .vscode-dark) .hookscope {{ {_set_variables(DARK)} }}
@media (prefers-color-scheme: dark) {{ body[data-theme="auto"] .hookscope {{ {_set_variables(DARK)} }} }}
"""
"""The colors as variables for widgets."""
