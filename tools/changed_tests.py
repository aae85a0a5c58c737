"""Choose what to test after an edit: from what git says has changed, and from who imports whom."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import grimp

from tools import architecture

ROOT = architecture.ROOT
CHAPTER = re.compile(r"(?:lessons|notebooks)/(\d\d_\w+)(?:/|\.ipynb$)")
FIGURE = re.compile(r"helpers/hookscope_course/figures/(\w+?)(?:\.py$|/)")
EVERY_CHAPTER = ("tests/course/test_exercises.py", "tests/course/test_lessons.py")
"""The tests that look at every chapter."""


def git(*arguments: str) -> str:
    """Ask git; an empty answer where it has none."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def base_of(wanted: str | None) -> str:
    """Return the commit to compare with: where this branch left the wanted one, or else origin/main, main, HEAD.

    Raises:
        SystemExit: git does not know the wanted commit, or this is no checkout.

    """
    for name in [wanted] if wanted else ["origin/main", "main", "HEAD"]:
        if git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"):
            return git("merge-base", name, "HEAD") or name
    raise SystemExit(
        f"git knows no commit {wanted!r}; BASE= takes a branch or a commit" if wanted else "no git checkout"
    )


def changed_since(base: str) -> list[str]:
    """List the files that are not what they were at a commit: changed, deleted, new."""
    tracked = git("-c", "core.quotePath=false", "diff", "--name-only", "--no-renames", base).splitlines()
    return sorted({*tracked, *git("ls-files", "--others", "--exclude-standard").splitlines()})


def module_of(file: str) -> str:
    """Return the name by which a file is imported; empty if it is none of a package."""
    path = Path(file)
    for package, place in architecture.PLACES.items():
        if path.suffix == ".py" and path.is_relative_to(place):
            parts = path.relative_to(place).with_suffix("").parts
            return ".".join((package, *(part for part in parts if part != "__init__")))
    return ""


def package_of(file: str) -> str:
    """Return the package a file belongs to, `hookscope.captures` for example; of a test, its module; empty outside."""
    path = Path(file)
    for package, place in architecture.PLACES.items():
        if path.is_relative_to(place) and package != "tests":
            first = path.relative_to(place).parts[0].removesuffix(".py")
            return f"{package}.{first}" if first in architecture.parts(package) else package
    return module_of(file)


def chosen(changed: list[str]) -> dict[str, str]:
    """Choose test files and notebooks, first things first, each with the reason."""
    plan: dict[str, str] = {}

    def add(files: Iterable[Path], reason: str) -> None:
        for file in files:
            name = file.relative_to(ROOT).as_posix()
            if file.is_file() and (name in changed or not name.startswith("tests/browser/")):
                plan.setdefault(name, reason)

    chapters = {file: found[1] for file in changed if (found := CHAPTER.match(file))}
    others = [file for file in changed if file not in chapters]
    packages = list(dict.fromkeys(package for file in others if (package := package_of(file))))
    imports = _imports()

    add([ROOT / file for file in changed if re.search(r"(^|/)(test|facts)_\w+\.py$", file)], "changed")
    for figure in dict.fromkeys(found[1] for file in changed if (found := FIGURE.match(file))):
        add([ROOT / f"tests/course/figures/test_{figure}.py"], f"the figure {figure} changed")
    for package in packages:
        add(own_tests(package), f"{package} changed")
    for file, chapter in chapters.items():
        if file.startswith("lessons/"):
            add([ROOT / f"lessons/{chapter}/facts_{chapter[:2]}.py"], "proves sentences of the lesson")
            add([ROOT / f"notebooks/{chapter}.ipynb"], "its lesson changed")
    if chapters:
        add([ROOT / file for file in EVERY_CHAPTER], "looks at every chapter")
    for package in packages:
        add(importing(imports, package), f"imports {package}")
    for file in others:
        if not file.endswith(".py"):
            add(naming(Path(file).name), f"speaks of {Path(file).name}")
    for package in packages:
        for dependent in dependents(imports, package):
            add(own_tests(dependent), f"{dependent} depends on {package}")
    add([ROOT / file for file in chapters if file.startswith("notebooks/")], "built again")
    return plan


def _imports() -> grimp.ImportGraph:
    """Read who imports whom: packages, and each test file."""
    found = architecture.graph()
    for package in architecture.PLACES:
        if package != "tests":
            for part in architecture.parts(package):
                found.squash_module(f"{package}.{part}")
    return found


def own_tests(package: str) -> list[Path]:
    """List the tests in the folder of a part of hookscope or of hookscope_course."""
    top, _, part = package.partition(".")
    folder = {"hookscope": "package", "hookscope_course": "course"}.get(top)
    return sorted((ROOT / "tests" / folder / part).glob("test_*.py")) if folder and part else []


def importing(imports: grimp.ImportGraph, package: str) -> list[Path]:
    """List the test files that import a package by its name."""
    importers = sorted(imports.find_modules_that_directly_import(package)) if package in imports.modules else []
    return [ROOT / f"{name.replace('.', '/')}.py" for name in importers if ".test_" in name]


def naming(name: str) -> list[Path]:
    """List the test files of the course and the repository that have a file's name in their text."""
    files = [*(ROOT / "tests/course").glob("test_*.py"), *(ROOT / "tests/repository").glob("test_*.py")]
    whole = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
    return sorted(file for file in files if whole.search(file.read_text(encoding="utf-8")))


def dependents(imports: grimp.ImportGraph, package: str) -> list[str]:
    """List the packages of hookscope that depend on one of them, nearest first."""
    if not package.startswith("hookscope.") or package not in imports.modules:
        return []
    far = {
        name: len(imports.find_shortest_chain(importer=name, imported=package) or ())
        for name in imports.find_downstream_modules(package)
        if name.startswith("hookscope.")
    }
    return sorted(far, key=lambda name: (far[name], name))
