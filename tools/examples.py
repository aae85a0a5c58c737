"""Run the Python blocks of README.md and docs/tour.md, and write below each of them what it prints.

python -m tools.examples            write the output into the pages
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/tour.md")
_BLOCK = re.compile(r"```python\n(.*?)```\n(\n```text\n(.*?)```\n)?", re.DOTALL)


def renewed(text: str, folder: Path) -> str:
    """Return a page with the output that its blocks have now.

    The blocks share their names, as the cells of a notebook do. A block that has no output below it gets none: its
    figures or times are not text that stays the same.

    Args:
        text: the page.
        folder: an empty one, in which the code runs.

    """
    names: dict[str, object] = {}
    parts, at = [], 0
    for block in _BLOCK.finditer(text):
        with contextlib.chdir(folder):
            shown = "".join(_shown(block[1], names))
        parts.append(text[at : block.start()] + f"```python\n{block[1]}```\n")
        if block[2]:
            parts.append(f"\n```text\n{shown}```\n")
        at = block.end()
    return "".join(parts) + text[at:]


def _shown(code: str, names: dict[str, object]) -> Iterator[str]:
    """Run code, and yield what a notebook would print: also the last expression."""
    body = ast.parse(code).body
    for place, line in enumerate(body):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            if isinstance(line, ast.Expr) and place == len(body) - 1:
                value = eval(compile(ast.Expression(line.value), "<page>", "eval"), names)
                if value is not None:
                    print(value)
            else:
                exec(compile(ast.Module([line], []), "<page>", "exec"), names)
        yield re.sub(r" +$", "", printed.getvalue(), flags=re.MULTILINE)


def main() -> None:
    """Write the output into the pages."""
    for name in PAGES:
        path = ROOT / name
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(renewed(path.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
