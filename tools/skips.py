"""List every skip of the tests, with its reason and when it may go, in tests/SKIPPED.md.

python -m tools.skips             write the page
python -m tools.skips --check     fail if it is out of date, or if WHEN has no row for a skip
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["PAGE", "find_skips", "main", "render", "when"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "SKIPPED.md"
PACKAGE_ALONE = "never: `make matrix` tests the package with few others installed"
WHEN: dict[str, str] = {
    r"^no Docker": "never: they need Docker with the images of deploy/",
    r"^no configurable-http-proxy": "never: the nightly run installs them",
    r"is not installed$": PACKAGE_ALONE,
    r"\btorch is not|\btorch warns|this torch|needs torch|\(torch": "when the package needs a newer torch",
    r"no backward pass|it runs copies|fused path|one tensor": "never: the matrix has no such cell",
    r"chromium|Chromium|browser": "never: CI sets HOOKSCOPE_REQUIRE_BROWSER, and then it is an error",
    r"bubblewrap": "never: CI sets HOOKSCOPE_REQUIRE_BROWSER, and then it is an error",
    r"root": "never: a root in a container may not mount",
    r"fork|Windows|named pipes|locks|Unix|`make` and process": "never: Windows has no such thing",
    r"weights": "never: set-up goes on without them; CI has them",
    r"make bench": "when `make bench` has written the tables",
    r"^why$": "never: this processor has no such instructions, or no others",
    r"no make": "never: a wheel needs no make",
    r"older than the lesson": "never: then `lessons.build --check` fails",
}
"""For each pattern of reasons: when such a skip may go."""


def find_skips(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Find the reason of each skip, and the file that has it."""
    for folder in ("tests", "lessons", "docs"):
        for file in sorted((root / folder).rglob("*.py")):
            name = file.relative_to(root).as_posix()
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if reason := _reason(node):
                    yield reason, name
    for file in sorted((root / "lessons").rglob("*.md")):
        for release in re.findall(r"^:holds_for: (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"torch is not {release}: the output of the cell is another", file.relative_to(root).as_posix()


def _reason(node: ast.AST) -> str:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    kind, owner = node.func.attr, ast.unparse(node.func.value)
    if kind in ("skipif", "xfail") and owner.endswith("mark"):
        given = next((each.value for each in node.keywords if each.arg == "reason"), None)
        return _text(given) if given is not None else "no reason"
    if owner == "pytest" and kind == "skip":
        return _text(node.args[0]) if node.args else "no reason"
    if owner == "pytest" and kind == "importorskip":
        return f"{_text(node.args[0]).partition('.')[0]} is not installed"
    return ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def when(reason: str) -> str:
    """Say when a skip may go; empty if nobody has said so."""
    return next((text for pattern, text in WHEN.items() if re.search(pattern, reason)), "")


def render(skips: Sequence[tuple[str, str]]) -> str:
    """Return the page: a row for each reason, with its files."""
    files: dict[str, list[str]] = {}
    for reason, file in skips:
        files.setdefault(reason, []).append(file)
    rows = [
        f"| {reason} | {when(reason)} | {', '.join(dict.fromkeys(where))} |" for reason, where in sorted(files.items())
    ]
    head = [
        "# What the tests skip",
        "",
        "`python -m tools.skips` writes this page.",
        "",
        "| skipped, because | may go | where |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*head, *rows, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.skips", description="List every skip of the tests.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    options = parser.parse_args(arguments)
    skips = [*find_skips()]
    unknown = sorted({f"{reason} ({file})" for reason, file in skips if not when(reason)})
    for each in unknown:
        print(f"WHEN in tools/skips.py does not say when this skip may go: {each}. Add a row for it", file=sys.stderr)
    page = render(skips)
    if not options.check:
        PAGE.write_text(page, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page:
        print("tests/SKIPPED.md is out of date; run: python -m tools.skips", file=sys.stderr)
        return 1
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
