"""What the pages of the site are made from: folded answers, links, the reference, what widgets answer."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest

import hookscope
from lessons.build import reading
from lessons.site import __main__ as site
from lessons.site import live, pages, reference, sections
from tests.shared import ROOT


def of(cells: list[dict[str, Any]]) -> list[str]:
    return ["".join(cell["source"]) for cell in cells]


def cell(kind: str, source: str, *tags: str) -> dict[str, Any]:
    outputs = {"outputs": [{"output_type": "stream", "text": "a result"}]} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {"tags": [*tags]}, "source": source, "id": "abc", **outputs}


def test_what_a_prediction_asks_for_is_folded_up_to_its_reason() -> None:
    cells = [
        cell("markdown", "Words.\n\n**Predict.** Which?"),
        cell("code", "guess = Guess(____)\nguess"),
        cell("code", "run()"),
        cell("markdown", "**Why.** So."),
        cell("markdown", "More."),
    ]
    made = list(pages.folded(pages._parts(cells, "notebooks/01_x.ipynb")))
    assert of(made) == [
        "Words.\n\n",
        "**Predict.** Which?",
        "guess = Guess(____)\nguess",
        "<details class='answer'><summary>Run it: what happens, and why</summary>\n",
        "run()",
        "**Why.** So.",
        "</details>\n",
        "More.",
    ]
    assert made[2]["outputs"] == []


def test_a_heading_ends_what_is_folded() -> None:
    cells = [cell("code", "guess = Guess(____)"), cell("code", "run()"), cell("markdown", "## Next")]
    made = of(list(pages.folded(pages._parts(cells, "notebooks/01_x.ipynb"))))
    assert made[-2:] == ["</details>\n", '<span id="Next"></span><span id="cell-id=abc"></span>\n\n## Next']


@pytest.mark.parametrize("path", sorted(reading.NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_page_closes_what_it_opens_and_shows_no_solution(path: Path) -> None:
    cells = pages.chapter(path)["cells"]
    depth, folds = 0, {"<details": 1, "</details": -1}
    for each in cells:
        source = "".join(each["source"])
        depth += sum(step for tag, step in folds.items() if source.startswith(tag))
        assert depth in (0, 1)
        if each["cell_type"] == "markdown" and source.startswith("#"):
            assert depth == 0
    assert depth == 0
    text = json.dumps(cells)
    assert "# solution" not in text
    assert str(ROOT) not in text


def test_links_lead_to_pages_and_what_is_no_page_stays_as_words() -> None:
    assert doctest.testmod(pages).failed == 0
    found = pages.relinked("[`a`](../notebooks/03_forward_hooks.ipynb#cell-id=f0)", "teaching/03_forward_hooks.md")
    assert found == '<a href="../03_forward_hooks.html#cell-id=f0"><code>a</code></a>'
    code = "`[a](b.md)` and\n```\n[a](README.md)\n```"
    assert pages.relinked(code, "README.md") == code


def test_the_reference_has_everything_public_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(reference.pages().values())
    named = re.findall(r"^\.\. auto(?:class|function|data):: (\w+)$", text, re.MULTILINE)
    assert {*hookscope.__all__} - {"widgets", "samples"} <= {*named}
    assert len(named) == len({*named})
    monkeypatch.setattr(hookscope, "__all__", [*hookscope.__all__, "newest"])
    with pytest.raises(LookupError, match=r"does not place: newest"):
        reference.pages()


def test_a_recorded_widget_answers_as_the_real_one() -> None:
    versions = next(each for each in live.LIVE if each.name == "versions")
    record = live.recorded(versions)
    real = versions.make()
    real.document, real._at = "D2", 3  # type: ignore[attr-defined]
    answer = record["answers"][live._key(["D2", 3])]
    values = record["values"]
    shown = {
        name: values[each["is"]] if isinstance(each, dict) and "is" in each else each for name, each in answer.items()
    }
    assert shown["alt"] == real.alt
    assert shown["document"] == "D2"
    assert not re.search(r"/(home|root|work)/", json.dumps(record))


def test_all_lessons_are_in_the_lists_of_the_site() -> None:
    lists = site.toctrees()
    for path in reading.lesson_files():
        assert f"\n{path.parent.name}\n" in lists


def test_sections_have_the_words_that_people_type(tmp_path: Path) -> None:
    page = (
        "<article><section id='x'><h1>Page</h1><section id='see-it'><h2>See it<a class='headerlink'>¶</a></h2>"
        "<p>Also asked as: look at it, watch.</p><p>Text.</p></section></section></article>"
    )
    (tmp_path / "91_chooser.html").write_text(page)
    _, found = sections.sections_of(tmp_path)
    assert found["url"] == "91_chooser.html#see-it"
    assert (found["heading"], found["asked"], found["page"]) == ("See it", "look at it, watch", "Page")
    assert found["weight"] > 1
