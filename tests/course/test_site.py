"""What the pages of the site are made from: folded answers, links, the reference, what widgets answer."""

from __future__ import annotations

import doctest
import html
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import hookscope
from hookscope import samples
from hookscope.widgets import LayerPicker, PatchMap
from hookscope_course.figures import (
    BothEnds,
    Bridge,
    CacheGrid,
    Chooser,
    GradientParts,
    GradientPlayground,
    PlayingMap,
    ResidualRiver,
    SealedModels,
    SilenceChannel,
    SteeringSlider,
    SymptomTree,
    TenTimesGame,
    TravelMap,
    TwoRuns,
)
from hookscope_course.figures.author_slider.figure import AuthorSlider
from hookscope_course.figures.kit.replay import ALL
from hookscope_course.practice import guess_results
from hookscope_course.practice.question import question, questions_of
from lessons.build import lesson_source
from lessons.site import __main__ as site
from lessons.site import (
    addresses,
    chapter_cards,
    chapter_recordings,
    guess_recordings,
    markdown_pages,
    pages,
    reference,
    search_index,
    widget_recordings,
)
from tests.shared import ROOT
from tests.shared.language_models import gpt2


def of(cells: list[dict[str, Any]]) -> list[str]:
    return ["".join(cell["source"]) for cell in cells]


def cell(kind: str, source: str, *tags: str) -> dict[str, Any]:
    outputs = {"outputs": [{"output_type": "stream", "text": "a result"}]} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {"tags": [*tags]}, "source": source, "id": "abc", **outputs}


ASKS = 'guess = Guess(____, about="03.1")'


def compared(source: str, answer: str) -> dict[str, Any]:
    """A cell that compares a guess, as it was built: nobody has guessed."""
    outputs = [{"output_type": "execute_result", "data": {"text/plain": f"The answer: {answer}."}}]
    return {**cell("code", source), "outputs": outputs}


def test_what_a_prediction_asks_for_is_folded_up_to_the_next_heading() -> None:
    cells = [
        cell("markdown", "Words.\n\n**Predict.** Which?"),
        cell("code", 'guess = Guess(____, about="03.1")\nguess'),
        cell("code", "run()"),
        compared("guess.compare(found)", "7"),
        cell("markdown", "**Why.** So.\n\nMore."),
        cell("code", "run_more()"),
        cell("markdown", "And more.\n\n## Next"),
    ]
    made = list(pages.fold_answers(pages._make_cells(cells, Path("01_x.ipynb"), {})))
    assert of(made) == [
        "Words.\n\n",
        "**Predict.** Which?",
        '<div class="guess" data-guess="03.1">Your guess: 6 · 7 · not a number: True · an error</div>',
        "<details class='answer' data-answer='03.1'><summary>Run it: what happens, and why</summary>\n",
        "run()",
        '<p class="told">The answer is <strong>7</strong>.</p>',
        "**Why.** So.\n\nMore.",
        "run_more()",
        "And more.\n\n",
        "</details>\n",
        '<span id="Next"></span><span id="cell-id=abc"></span>\n\n## Next',
    ]


def test_what_is_for_a_notebook_only_is_not_on_a_page() -> None:
    cells = [cell("markdown", "Read."), cell("markdown", "Now run it.", "notebook"), cell("code", "run()", "notebook")]
    assert of(list(pages._make_cells(cells, Path("01_x.ipynb"), {}))) == ["Read."]


@pytest.mark.parametrize("name", ["00_start_here", "index"])
def test_a_page_tells_nobody_to_press_keys_of_a_notebook(name: str) -> None:
    source = (lesson_source.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    orders = re.compile(r"`Run` →|Shift \+ Enter|run this cell")
    assert orders.search(source)
    cells = pages.make_chapter_page(lesson_source.NOTEBOOKS / f"{name}.ipynb")["cells"]
    assert not [each for each in of(cells) if orders.search(each)]


def test_imports_are_folded_but_not_twice() -> None:
    imports, more = cell("code", "import torch\nfrom torch import nn"), cell("code", "import torch\nx = 1")
    cells = [imports, more, cell("code", ASKS), imports, cell("code", "%timeit 1")]
    made = of(list(pages.fold_answers(pages._make_cells(cells, Path("01_x.ipynb"), {}))))
    folded = ["<details class='imports'><summary>Imports</summary>\n", imports["source"], "</details>\n"]
    assert made[:4] == [*folded, more["source"]]
    assert made[5:] == [made[5], imports["source"], "%timeit 1", "</details>\n"]
    assert made[5].startswith("<details class='answer'")


@pytest.mark.parametrize("path", lesson_source.chapter_files(), ids=lambda path: path.parent.name)
def test_every_reason_and_all_that_follows_it_is_in_its_fold(path: Path) -> None:
    """36 of 95 stood outside once, those with the next heading in the same cell."""
    cells = pages.make_chapter_page(lesson_source.NOTEBOOKS / f"{lesson_source.name_of(path)}.ipynb")["cells"]
    depth, is_told, reasons = 0, False, 0
    for each in cells:
        source = "".join(each["source"])
        if each["cell_type"] == "markdown":
            depth += source.count("<details") - source.count("</details")
            if re.search(r"^#{1,6} ", source, re.MULTILINE) or "stop" in each["metadata"].get("tags", []):
                is_told = False
                assert "**Why.**" not in source
                assert "When you come back, click" not in source, "a page has no kernel"
                assert depth == 0
            if "**Why.**" in source:
                is_told, reasons = True, reasons + 1
        if is_told and source.strip() != "</details>":
            assert depth == 1, source[:200]
    built = (lesson_source.NOTEBOOKS / f"{lesson_source.name_of(path)}.ipynb").read_text(encoding="utf-8")
    assert reasons == built.count("**Why.**") > 2


def test_a_heading_ends_what_is_folded() -> None:
    cells = [cell("code", ASKS), cell("code", "run()"), cell("markdown", "## Next")]
    made = of(list(pages.fold_answers(pages._make_cells(cells, Path("01_x.ipynb"), {}))))
    assert made[-2:] == ["</details>\n", '<span id="Next"></span><span id="cell-id=abc"></span>\n\n## Next']


@pytest.mark.parametrize("path", sorted(lesson_source.NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_page_closes_what_it_opens_and_shows_no_solution(path: Path) -> None:
    cells = pages.make_chapter_page(path)["cells"]
    depth = 0
    for each in cells:
        source = "".join(each["source"])
        if each["cell_type"] != "code":
            depth += len(re.findall("^<details", source, re.MULTILINE)) - len(re.findall("</details>", source))
        assert depth in (0, 1)  # a box of details that opens and closes in one cell may stand inside a fold
        if each["cell_type"] == "markdown" and source.startswith("#"):
            assert depth == 0
    assert depth == 0
    text = json.dumps(cells)
    assert "# solution" not in text
    assert str(ROOT) not in text


ASKING = [path.parent.name for path in lesson_source.lesson_files() if (path.parent / "guesses.toml").exists()]


@pytest.mark.parametrize("name", ASKING)
def test_a_page_says_to_each_guess_what_the_notebook_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guess_results, "_outcomes", {})
    cells = json.loads((lesson_source.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    answers = guess_recordings.find_answers(cells)
    assert {*answers} == {*questions_of(int(name[:2]))}
    for about, answer in answers.items():
        asked, record = question(about), guess_recordings.record_question(about, answer)
        texts = record["texts"]
        right = [key for key, (*_, mood, _) in record["tries"][0].items() if mood == "right"]
        assert right, about
        assert len(right) == 1 or asked.close, about
        open_first = {key: texts[said[1]] for key, said in record["tries"][0].items() if not said[3]}
        if asked.kind in ("choices", "field"):
            for guess, reason in asked.wrong:
                assert any(reason in said for said in open_first.values()) or len(asked.choices) == 2, (about, guess)
        for key, said in open_first.items():
            assert "The answer is" not in said
            assert "run both cells" not in said
            heading, message, _, over = record["tries"][1][key]
            assert over
            assert texts[heading].startswith("You guessed")
            assert texts[message].startswith("The answer is")
        if open_first:
            assert all(texts[record["tries"][1][key][0]].startswith(("Right, at the second", "Close")) for key in right)
        assert texts[record["shown"][0]].startswith("The answer is")
        assert record["state"]["heading"] == "You have not guessed yet."
    assert guess_results.read_outcomes() == {}, "a page keeps its score by itself"


def test_an_answer_that_a_question_does_not_offer_is_an_error() -> None:
    ask = cell("code", ASKS)
    assert guess_recordings.find_answers([ask, compared("guess.compare(found)", "7")]) == {"03.1": "7"}
    with pytest.raises(LookupError, match="the answer '8' is nothing that the question offers"):
        guess_recordings.find_answers([ask, compared("guess.compare(found)", "8")])
    with pytest.raises(LookupError, match=r"no cell shows the answer to 03\.1"):
        guess_recordings.find_answers([ask, cell("code", "run()")])
    assert doctest.testmod(guess_recordings).failed == 0


def test_links_lead_to_pages_and_what_is_no_page_stays_as_words() -> None:
    assert doctest.testmod(pages).failed == 0
    found = pages.replace_links("[`a`](../notebooks/03_forward_hooks.ipynb#cell-id=f0)", "teaching/03_forward_hooks.md")
    assert found == '<a href="../03_forward_hooks.html#cell-id=f0"><code>a</code></a>'
    code = "`[a](b.md)` and\n```\n[a](README.md)\n```"
    assert pages.replace_links(code, "README.md") == code


def test_the_reference_has_everything_public_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(reference.make_pages().values())
    named = re.findall(r"^\.\. (?:auto(?:class|function)|py:data):: (\w+)$", text, re.MULTILINE)
    assert {*hookscope.__all__} - {"widgets", "samples"} <= {*named}
    assert len(named) == len({*named})
    for result, member in {"Capture": "start", "Edit": "swap", "Census": "remove_all", "Sweep": "table"}.items():
        assert f"   ~{result}.{member}\n" in text
        assert f".. autoclass:: {result}()\n" in text
    assert ":doc:`06 · The layer picker </06_layer_picker>`" in reference.make_pages()["widgets"]
    assert ("14_inside_a_transformer", "14 · Inside a transformer") in reference.list_uses("attention")
    monkeypatch.setattr(hookscope, "__all__", [*hookscope.__all__, "newest"])
    with pytest.raises(LookupError, match=r"does not place: newest"):
        reference.make_pages()


def test_a_recorded_widget_answers_as_the_real_one_and_is_left_as_it_was() -> None:
    versions = next(each for each in widget_recordings.LIVE_WIDGETS if each.name == "versions")
    recipe = AuthorSlider.replay
    record = widget_recordings.record_widget(versions.make(), "versions", recipe, next(iter(recipe.choices.values())))
    real = versions.make()
    real.document, real._at = "D1", 3
    answer = record["answers"][widget_recordings._encode_key(["D1", 3])]
    values = record["values"]
    shown = {
        name: values[each["is"]] if isinstance(each, dict) and "is" in each else each for name, each in answer.items()
    }
    assert shown["alt"] == real.alt
    assert shown["document"] == "D1"
    assert not re.search(r"/(home|root|work)/", json.dumps(record))
    assert widget_recordings.record_within_limit(real, "versions")
    assert (real.document, real._at) == ("D1", 3)


def test_a_widget_is_recorded_as_far_as_a_page_can_carry_it(monkeypatch: pytest.MonkeyPatch) -> None:
    picker = LayerPicker(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()), torch.ones(1, 1, 8, 8), channel=1)
    everything, words = widget_recordings.record_within_limit(picker, "small") or ("", "")
    assert "Layers and channels" in words
    monkeypatch.setattr(widget_recordings, "MAX_CHARACTERS", len(everything) - 1)
    layers, words = widget_recordings.record_within_limit(picker, "small") or ("", "")
    assert "channels and *More choices* need a kernel" in words
    assert 0 < len(layers) < len(everything)
    monkeypatch.setattr(widget_recordings, "MAX_CHARACTERS", 1000)
    assert widget_recordings.record_within_limit(picker, "small") is None
    assert (picker.layer, picker.channel) == ("0", 1)
    assert widget_recordings.record_within_limit(GradientPlayground(), "large") is None


def test_the_cells_of_a_patch_map_are_answered_on_the_site() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    swept = hookscope.sweep(
        net, torch.ones(1, 3), layers="*", source="zero", channels=range(4), metric=lambda y: y.sum()
    )
    patches = PatchMap(swept)
    script, words = widget_recordings.record_within_limit(patches, "patches") or ("", "")
    assert "Cells are answered" in words
    record = json.loads(script.partition(" = ")[2].rstrip(";\n"))
    assert {tuple(json.loads(key)[:2]) for key in record["answers"]} == {*product("01", range(4))}


def test_the_tasks_of_the_gradient_playground_are_answered_on_the_site() -> None:
    playground = GradientPlayground(guess=True)
    script, words = widget_recordings.record_within_limit(playground, "playground") or ("", "")
    assert "Tasks and passes" in words
    assert (playground.task, playground.runs) == (0, 0), "it is left as it was"
    record = json.loads(script.partition(" = ")[2].rstrip(";\n"))
    assert set(record["answers"]) == {f"[{task},{runs}]" for task in range(4) for runs in range(3)}
    assert record["quiet"] == ["guesses"]


@pytest.mark.parametrize(
    ("make", "choice"),
    [
        (lambda: PlayingMap(guess=True), {"guesses": [["forward_pre"]], "index": 1, "speed": 2.0}),
        (PlayingMap, {"hooks": {"full_backward": "multiply"}, "index": 3, "guesses": []}),
        (BothEnds, {"stops": ["stop_input"], "plain": ["x2"], "marks": ["x1.grad"], "ran": True}),
        (Bridge, {"place": 5}),
        (SymptomTree, {"path": ["Memory grows", "yes"]}),
        (Chooser, {"words": "nan", "group": "debug"}),
        (
            SealedModels,
            {"box": 2, "asked": [[], ["census"], [], []], "accused": [[["mix", "it has no hook"]], *3 * [[]]]},
        ),
        (GradientParts, {"place": "w", "effect": "double", "guesses": {"got": "18"}, "ran": True}),
        (TwoRuns, {"tried": [[0, 10]], "at": [0, 10], "shown": True, "measure": "logits"}),
        (TravelMap, {"guesses": {"prune": "left"}, "visited": ["prune"], "at": "export"}),
        (TenTimesGame, {"marks": {"forward": ["y"]}, "revealed": ["forward"]}),
        (
            lambda: SteeringSlider(
                samples.story_lm(), "blocks.0", torch.ones(64), "the cat near the dog", {"a": ["run"], "b": ["runs"]}
            ),
            {"strength": 2.5, "place": "every token", "explored": {"every token": [3, 20]}},
        ),
        (
            lambda: CacheGrid(gpt2(), "transformer.h.0"),
            {"change": "output[:, -1]", "marks": ["0,0,4", "1,3,7"], "ran": True},
        ),
    ],
)
def test_a_figure_that_has_its_runs_with_it_is_alive_on_the_site(make: Any, choice: dict[str, Any]) -> None:
    widget = make()
    script, words = widget_recordings.record_within_limit(widget, "figure") or ("", "")
    assert words == ALL or make is Chooser
    record = json.loads(script.partition("= ")[2].partition("= ")[2].rstrip(";\n"))
    assert record["free"], "what was not recorded is no problem: the script in the page does all of it"
    assert {*choice} <= {*record["controls"], *record["quiet"]} <= {*record["state"]}
    assert {*re.findall(r"put\(model, \{ ?(\w+)", record["esm"])} <= {*record["controls"], *record["quiet"]}
    for name, value in choice.items():  # and the real one takes what the page sets
        setattr(widget, name, value)
        assert getattr(widget, name) == value


def test_every_channel_and_factor_is_answered_on_the_site() -> None:
    figure = SilenceChannel(samples.digit_cnn(), samples.digit(1))
    script, words = widget_recordings.record_within_limit(figure, "silence") or ("", "")
    assert words == ALL
    record = json.loads(script.partition("= ")[2].partition("= ")[2].rstrip(";\n"))
    # The slider has steps of a tenth, and JavaScript writes 1, not 1.0.
    assert set(record["answers"]) == {f"[{channel},{factor / 10:g}]" for channel in range(16) for factor in range(21)}
    assert record["answers"]["[6,0]"]["tried"] == {"6": 1}, "what other channels do is not shown before they are tried"
    assert "tried" not in record["answers"]["[6,0.5]"]


def test_the_river_answers_its_own_texts_on_the_site() -> None:
    river = ResidualRiver(samples.story_lm(), "the dogs near the cat", lens=False)
    script, words = widget_recordings.record_within_limit(river, "river") or ("", "")
    assert "texts of your own need a kernel" in words
    record = json.loads(script.partition("= ")[2].partition("= ")[2].rstrip(";\n"))
    assert set(record["answers"]) == {json.dumps([text]) for text in river._texts}
    assert (record["controls"], record["quiet"]) == (["text"], ["token", "depth", "tap", "head"])
    assert {*re.findall(r"put\(model, \{ ?(\w+)", record["esm"])} <= {"text", "token", "depth", "tap"}
    assert river.text == "the dogs near the cat", "it is left as it was"
    assert len(script) < widget_recordings.MAX_CHARACTERS / 4


def test_a_question_is_no_widget_that_has_to_be_recorded() -> None:
    shown = [{"data": {pages.WIDGET: {}}}]
    guess = {**cell("code", ASKS), "outputs": shown}
    figure = {**cell("code", "TenTimesGame()"), "id": "def", "outputs": shown}
    assert pages.find_widget_cells([guess, figure]) == ["def"]


def test_a_page_shows_the_widget_that_its_cells_make(tmp_path: Path) -> None:
    code = "import torch\nfrom torch import nn\nfrom hookscope.widgets import LayerPicker\n"
    make = "net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())\nLayerPicker(net, torch.ones(1, 1, 8, 8))"
    saved = {pages.WIDGET: {}, "text/plain": "LayerPicker", "text/html": "<p>Its\n\npicture</p>"}
    cells = [cell("code", code), {**cell("code", make), "id": "def", "outputs": [{"data": saved}]}]
    notebook = tmp_path / "01_x.ipynb"

    def recorded() -> dict[str, str]:
        notebook.write_text(json.dumps({"cells": cells, "metadata": {"kernelspec": {}}}))
        return dict(chapter_recordings.record_notebook(notebook, tmp_path))

    with pytest.raises(RuntimeError, match=r"01_x.ipynb, cell def: now LayerPicker.* saved LayerPicker$") as error:
        recorded()
    saved["text/plain"] = str(error.value).partition("now ")[2].rpartition(", saved")[0]
    alive = recorded()
    assert [*alive] == ["def"]
    assert (tmp_path / "01-def.js").exists()
    page = "".join(of(pages.make_chapter_page(notebook, alive)["cells"]))
    assert '<div class="live" data-live="01-def">\n<p>Its\npicture</p>\n</div>' in page
    assert pages.RUN_IT in "".join(of(pages.make_chapter_page(notebook)["cells"]))
    cells[0]["source"] = "1 / 0"
    with pytest.raises(RuntimeError, match=r"cell abc: division by zero"):
        recorded()


def test_the_first_page_has_a_card_of_each_chapter_with_a_picture_out_of_it(tmp_path: Path) -> None:
    made = chapter_cards.make_cards(tmp_path)
    for path in lesson_source.chapter_files():
        name = lesson_source.name_of(path)
        assert f'<a class="card" href="{name}.html">' in made
        assert html.escape(lesson_source.header_of(path)["promise"]) in made
        assert (f"{name}.webp" in made) == (tmp_path / f"{name}.webp").exists()
    sizes = [path.read_bytes() for path in tmp_path.iterdir()]
    assert max(map(len, sizes)) < 40_000, "a phone loads many of them"
    assert len(sizes) > 12
    assert len({*sizes}) == len(sizes), "the map of all hooks is in many chapters, and says nothing of one"


def test_all_lessons_and_docs_are_in_the_lists_of_the_site() -> None:
    lists = site.make_toctrees()
    for path in lesson_source.lesson_files():
        assert f"\n{pages.get_page_name(path.parent.name)}\n" in lists
    for name in pages.DOCS:
        assert f"\n{name}\n" in lists
    for folder in pages.FOLDERS:
        assert f"\n{folder}/index\n" in lists
        assert all(f"\n{page.stem}\n" in site.list_folder(folder) for page in pages.list_pages(folder))


def test_the_old_address_of_a_chapter_leads_to_the_new_one(tmp_path: Path) -> None:
    site.redirect(tmp_path)
    text = (tmp_path / "10_versions.html").read_text()
    assert 'content="0; url=94_time_machine.html"' in text
    assert '<a href="94_time_machine.html">' in text
    assert (lesson_source.NOTEBOOKS / "94_time_machine.ipynb").exists()


def test_sections_have_the_words_that_people_type(tmp_path: Path) -> None:
    page = (
        "<article><section id='x'><h1>Page</h1><section id='see-it'><h2>See it<a class='headerlink'>¶</a></h2>"
        "<p>Also asked as: look at it, watch.</p><p>Text.</p>"
        "<div class='cell'><pre>x = 1</pre><p>2</p></div></section></section></article>"
    )
    (tmp_path / "91_chooser.html").write_text(page)
    _, found = search_index.split_pages(tmp_path)
    assert found["url"] == "91_chooser.html#see-it"
    assert (found["heading"], found["asked"], found["page"]) == ("See it", "look at it, watch", "Page")
    assert found["weight"] > 1
    assert (found["prose"], found["code"]) == ("Also asked as: look at it, watch.\nText.", "x = 1 2")


def test_no_two_files_have_one_page() -> None:
    made = [
        page
        for name, page in pages.map_files_to_pages().items()
        if name.startswith(("notebooks/", "docs/")) or name.endswith(".md")
    ]
    assert sorted({*made}) == sorted(made)
    assert pages.map_files_to_pages()["notebooks/index.ipynb"] == "where_to_begin", (
        "the first page of the site is its own"
    )


def test_programs_find_each_page_as_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOKSCOPE_SITE", raising=False)
    assert doctest.testmod(markdown_pages).failed == 0
    page = (
        "<article><h1>One</h1><p>See <a href='b.html#c'>it</a>.</p><ul><li>x</li><li>y</li></ul><img alt='A cat'>"
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1|2</td><td><code>c</code></td></tr></table></article>"
    )
    (tmp_path / "03_one.html").write_text(page)
    markdown_pages.write(tmp_path)
    text = (tmp_path / "03_one.md").read_text()
    assert "See [it](b.md#c).\n\n- x\n- y\n\n[Image: A cat]\n\n| a | b |\n| --- | --- |\n| 1\\|2 | `c` |\n" in text
    assert "## Chapters\n\n- [One](03_one.md)\n" in (tmp_path / "llms.txt").read_text()
    assert not (tmp_path / "sitemap.xml").exists(), "a sitemap needs the address of the site"
    monkeypatch.setenv("HOOKSCOPE_SITE", "https://example.org/hooks")
    markdown_pages.write(tmp_path)
    assert "<loc>https://example.org/hooks/03_one.html</loc>" in (tmp_path / "sitemap.xml").read_text()
    assert "(https://example.org/hooks/03_one.md)" in (tmp_path / "llms.txt").read_text()


def test_a_chapter_opens_elsewhere_where_the_repository_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert addresses.list_launch_addresses("03_forward_hooks") == {}
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/hookscope")
    page = "".join(of(pages.make_chapter_page(lesson_source.NOTEBOOKS / "03_forward_hooks.ipynb")["cells"]))
    assert "https://mybinder.org/v2/gh/someone/hookscope/HEAD?labpath=course%2F03_forward_hooks.ipynb" in page
    assert "https://codespaces.new/someone/hookscope" in page
    assert "hookscope_course course" in (ROOT / "postBuild").read_text(), "what makes course/ on Binder"
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "set_up.py" in container["postCreateCommand"]


def test_the_workflow_that_publishes_the_site_is_off() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text())
    assert workflow[True] == "workflow_dispatch"  # YAML reads "on" as true
    assert "make site" in [step.get("run") for step in workflow["jobs"]["publish"]["steps"]]
