"""Draw docs/architecture.md, and list in CONTRIBUTING.md which files each chapter uses.

    python -m tools.architecture            write the picture and the tables
    python -m tools.architecture --check    say whether they are up to date

The arrows are read from the imports by grimp, which import-linter uses too; nothing is imported for it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import grimp

from hookscope_course.figures.registry import FIGURES
from tools.page_blocks import block, put, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
COURSE = "helpers/hookscope_course"
PLACES = {
    "hookscope": "helpers/hookscope",
    "hookscope_course": "helpers/hookscope_course",
    "lessons": "lessons",
    "tools": "tools",
    "benchmarks": "benchmarks",
    "tests": "tests",
}
"""The top-level packages and their folders."""
SHOWN = ("hookscope", "hookscope_course", "lessons", "tests")
"""The packages whose parts are listed, too."""
NOTEBOOKS = "Built and executed, with outputs and solutions."


def graph(*packages: str, places: tuple[Path, ...] = (), external: bool = False) -> grimp.ImportGraph:
    """Read the imports of these packages of this checkout, or of all; nothing is imported for it."""
    before = sys.path[:]
    sys.path[:0] = [str(place) for place in (ROOT, ROOT / "helpers", *places)]
    try:
        return grimp.build_graph(*(packages or PLACES), include_external_packages=external, cache_dir=None)
    finally:
        sys.path[:] = before


def parts(package: str) -> dict[str, Path]:
    """Return the parts of a package by name, each with the file whose docstring begins with its sentence."""
    folder = ROOT / PLACES[package]
    found = {path.parent.name: path for path in folder.glob("*/__init__.py")}
    found |= {path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return dict(sorted(found.items()))


def sentence(path: Path) -> str:
    """Return the first line of a file's docstring.

    Raises:
        ValueError: there is none.

    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring; its first line says what the module is for")
    return text.splitlines()[0]


def between_parts() -> grimp.ImportGraph:
    """Read which part of hookscope imports which."""
    found = graph("hookscope")
    for part in parts("hookscope"):
        found.squash_module(f"hookscope.{part}")
    return found


def between_packages() -> grimp.ImportGraph:
    """Read which of the packages, of the notebooks and of what is installed imports which."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "notebooks"
        package.mkdir()
        (package / "__init__.py").touch()
        for path in (ROOT / "notebooks").glob("*.ipynb"):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
            (package / f"of_{path.stem}.py").write_text(code, encoding="utf-8")
        found = graph(*PLACES, "notebooks", places=(Path(folder),), external=True)
    for name in (*PLACES, "notebooks"):
        found.squash_module(name)
    return found


def arrows(found: grimp.ImportGraph, names: list[str]) -> list[tuple[str, str]]:
    """List the imports between these modules, without those that follow from others."""
    lean = grimp.ImportGraph()
    pairs = [
        (importer, imported)
        for importer in names
        for imported in sorted(found.find_modules_directly_imported_by(importer))
        if imported in names and imported != importer
    ]
    for importer, imported in pairs:
        lean.add_import(importer=importer, imported=imported)
    kept = []
    for importer, imported in pairs:
        lean.remove_import(importer=importer, imported=imported)
        if not lean.chain_exists(importer=importer, imported=imported):
            lean.add_import(importer=importer, imported=imported)
            kept.append((importer, imported))
    return kept


def _box(name: str, label: str, text: str) -> str:
    text = text.replace("`", "").replace('"', "#quot;")
    return f'{name}["<b>{label}</b><br/>{text}"]'


def picture() -> str:
    """Draw the imports in Mermaid, which GitHub and JupyterLab show as a picture."""
    inner = [f"hookscope.{part}" for part in parts("hookscope")]
    lines = [
        "flowchart TD",
        "  accTitle: Architecture",
        "  accDescr: Boxes are packages, an arrow leads from the one that imports to the one that is imported",
        "  " + _box("notebooks", "notebooks", NOTEBOOKS),
        *(
            "  " + _box(name, name, sentence(ROOT / place / "__init__.py"))
            for name, place in PLACES.items()
            if name != "hookscope"
        ),
        "  subgraph hookscope",
        "    direction TB",
        *("    " + _box(f"hookscope.{part}", part, sentence(path)) for part, path in parts("hookscope").items()),
        *(f"    {importer} --> {imported}" for importer, imported in arrows(between_parts(), inner)),
        "  end",
        "  lessons -. make .-> notebooks",
        *(
            f"  {importer} --> {imported}"
            for importer, imported in arrows(between_packages(), ["notebooks", *PLACES, "torch"])
        ),
    ]
    return "\n".join(["```mermaid", *lines, "```"])


def listing() -> str:
    """List the packages: name, sentence, folder."""
    rows: list[dict[str, object]] = []
    for package, place in PLACES.items():
        found = {package: ROOT / place / "__init__.py"}
        if package in SHOWN:
            found |= {f"{package}.{part}": path for part, path in parts(package).items()}
        for name, path in found.items():
            where = (path.parent if path.stem == "__init__" else path).relative_to(ROOT).as_posix()
            rows.append({"package": f"`{name}`", "what it is for": sentence(path), "where": f"[{where}](../{where})"})
    return table(rows)


def chapter_files() -> str:
    """List for each chapter the figures, the code and the tests that belong to it."""
    rows: list[dict[str, object]] = []
    for lesson in sorted((ROOT / "lessons").glob("[0-9][0-9]_*/lesson.md")):
        text = lesson.read_text(encoding="utf-8")
        modules = re.findall(r"^from hookscope_course\.((?:figures|chapters)\.\w+)", text, re.MULTILINE)
        modules += [
            f"chapters.{name}" for name in re.findall(r"^from hookscope_course\.chapters import (\w+)", text, re.M)
        ]
        number = int(lesson.parent.name[:2])
        modules += [
            f"figures.{figure.module.split('.')[0]}" for figure in FIGURES.values() if number in figure.chapters
        ]
        files = [_files_of(ROOT / COURSE / module.replace(".", "/")) for module in sorted({*modules})]
        tests = [ROOT / "tests" / "course" / path.parent.name / f"test_{path.stem}.py" for path in files]
        tests += sorted(lesson.parent.glob("facts_*.py"))
        rows.append(
            {
                "chapter": _link(lesson.parent),
                "figures": _links(path for path in files if "figures" in path.parts),
                "other code": _links(path for path in files if "figures" not in path.parts),
                "tests": _links(path for path in tests if path.is_file()),
            }
        )
    return table(rows)


def _files_of(place: Path) -> Path:
    return place if place.is_dir() else place.with_suffix(".py")


def _link(path: Path) -> str:
    return f"[{path.stem}]({path.relative_to(ROOT).as_posix()})"


def _links(paths: Iterable[Path]) -> str:
    return "<br>".join(map(_link, dict.fromkeys(paths))) or "–"


def main(arguments: list[str] | None = None) -> int:
    """Write the picture and the table, or say whether they are up to date."""
    parser = argparse.ArgumentParser(prog="python -m tools.architecture", description="Draw docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the picture is out of date")
    blocks = {"architecture": (PAGE, f"{picture()}\n\n{listing()}"), "chapters": (CONTRIBUTING, chapter_files())}
    if not parser.parse_args(arguments).check:
        for name, (path, text) in blocks.items():
            put(path, name, text)
        return 0
    stale = [path.name for name, (path, text) in blocks.items() if block(path, name) != text]
    for name in stale:
        print(f"{name} is out of date; run: make architecture")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
