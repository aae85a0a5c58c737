"""What README and the tour show is what their code prints; README is read in a minute and leads to every chapter."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from PIL import Image

from lessons.build import lesson_source
from lessons.site import readme_image
from lessons.site.__main__ import read_minutes
from tests.shared import ROOT
from tools import examples

README = (ROOT / "README.md").read_text(encoding="utf-8")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def same(shown: str, printed: str) -> bool:
    """Whether two texts are the same but for the last digits of numbers, which differ from machine to machine."""
    if _NUMBER.sub("0", shown) != _NUMBER.sub("0", printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=0.002, abs_tol=1e-5) for a, b in pairs)


@pytest.mark.parametrize("name", examples.PAGES)
def test_the_code_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "```text\n" in text
    assert same(text, examples.renewed(text, tmp_path)), "run python -m tools.examples, and read what changed"


def test_a_changed_output_is_seen(tmp_path: Path) -> None:
    page = "```python\nprint(1.25)\n'two'\n```\n\n```text\n1.25\ntwo\n```\n"
    assert same(page, examples.renewed(page, tmp_path))
    assert not same(page.replace("1.25\ntwo", "1.26\ntwo"), examples.renewed(page, tmp_path))
    assert not same(page.replace("1.25\ntwo", "1.25\n"), examples.renewed(page, tmp_path))


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.encode()) <= 7_000
    assert len(README.partition("```python")[0].split()) <= 170, "words before the first code"


def test_the_readme_leads_to_all_chapters_and_names_what_people_come_with() -> None:
    linked = {*re.findall(r"\(notebooks/(\w+)\.ipynb\)", README)}
    assert {lesson_source.name_of(path) for path in lesson_source.reference_files()} - {"index"} <= linked
    assert "(docs/course.md)" in README
    for word in ("NaN", "Grad-CAM", "TransformerLens", "remove hooks", "feature extraction", "make lab", "make test"):
        assert word in README
    minutes = read_minutes().values()
    hours = round(sum(minutes) / 60)
    said = f"The {len(minutes)} chapters take about {hours} hours: each takes {min(minutes)} to {max(minutes)} minutes"
    assert said in " ".join(README.split())


def test_the_image_moves_and_is_small() -> None:
    assert readme_image.TARGET.stat().st_size <= readme_image.MOST
    with Image.open(readme_image.TARGET) as image:
        assert image.n_frames == 2 * len(readme_image.STEPS)
