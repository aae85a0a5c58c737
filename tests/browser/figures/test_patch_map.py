"""The patch map on a bare page: by mouse and by keyboard, in both themes, narrow, with a name that attacks."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.figures.table import draw
from tests.shared.figure_page import PANE, FigurePage

BROKEN = """part => {
    const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT), broken = [];
    while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (range.getClientRects().length > 1) broken.push(word[0]);
    }
    return broken;
}"""  # the words that go on in the next line


def test_patch_map(figures: FigurePage) -> None:
    page, stage = figures.page, draw(figures, "PatchMap")
    grid, caption, chosen = stage.get_by_role("grid"), stage.locator(".pm-caption"), stage.locator("[aria-selected]")
    chosen = stage.locator("[role=gridcell][aria-selected=true]")
    expect(caption).to_contain_text("embed, position 1 '<img src=x …':")
    expect(stage.get_by_role("gridcell")).to_have_count(20)
    assert page.locator("img[src='x']").count() == 0
    expect(stage.locator(".pm-output caption")).to_contain_text(
        "Probabilities of the top words at position 4 of 5, 9 in"
    )
    texts = figures.kernel("print([f'{value:.4g}' for value in found.values[0].tolist()])")
    assert str(stage.locator("[data-row='0']").all_inner_texts()) == texts  # the numbers, in text, in their cells

    table = stage.locator("details", has=page.get_by_text("Numbers in a table"))
    table.locator("summary").click()
    assert str(table.locator("tbody tr").first.locator("td").all_inner_texts()) == texts
    table.locator("summary").click()

    # By mouse, and what is shown is what really running that edit gives.
    stage.get_by_role("gridcell", name="blocks.0, position 2 'sat':").click()
    expect(caption).to_contain_text("blocks.0, position 2 'sat':")
    expect(stage.locator(".pm-words")).to_contain_text("Position 2 'sat' of the output of blocks.0 is patched")
    figures.told("print(patches.layer, patches.column, patches.problem)", "blocks.0 2")
    words = [row.split("\t")[0] for row in stage.locator(".pm-outcome .pm-output tbody tr").all_inner_texts()]
    number = f"vocabulary.index({words[0]!r})"
    after = stage.locator(".pm-outcome .pm-output tbody tr").first.locator("td").last.inner_text()
    assert figures.kernel(f"print('%.4g' % patches.outcome.after[0, -1].softmax(-1)[{number}])") == after

    # By keyboard: arrows, Home and End, the ends of the map; a letter is nobody's.
    grid.focus()
    for key in ("ArrowRight", "ArrowDown", "d", "d", "x", "m"):
        page.keyboard.press(key)
    figures.told("print(patches.layer, patches.column)", "blocks.1 3")
    expect(chosen).to_have_attribute(
        "aria-label", figures.kernel("""print(f"blocks.1, position 3 'down': {patches.cell.value:.4g}")""")
    )
    for key, cell in {
        "Home": "blocks.1 0",
        "End": "blocks.1 4",
        "PageUp": "embed 4",
        "Control+End": "blocks.2 4",
    }.items():
        page.keyboard.press(key)
        figures.told("print(patches.layer, patches.column)", cell)
    expect(grid).to_be_focused()
    active = grid.get_attribute("aria-activedescendant")
    assert page.locator(f"[id='{active}']").get_attribute("aria-selected") == "true"

    # It was left out by the interrupt: drawn apart, said so, and run now.
    expect(caption).to_contain_text("with the edit")
    expect(stage.locator(".pm-notes")).to_contain_text("The sweep was interrupted before this cell")
    expect(chosen).to_have_text("–")
    expect(chosen).to_have_class("pm-cell pm-left")
    expect(stage.locator(".pm-key")).to_contain_text("was not run: the sweep was interrupted.")

    # From Python; another position of the output; what it says to a model that has changed.
    figures.kernel("patches.layer, patches.column = 'blocks.0', 1")
    expect(caption).to_contain_text("blocks.0, position 1 ")
    stage.get_by_label("Position in the output", exact=True).select_option("1")
    expect(stage.locator(".pm-output caption")).to_contain_text("at position 1 of 5")
    figures.width(400)
    table.locator("summary").click()
    for part in stage.locator(".pm-output tbody").all():
        assert part.evaluate(BROKEN) == []
    table.locator("summary").click()
    figures.width(PANE[0])
    figures.kernel("with torch.no_grad(): net.head.weight *= 2")
    stage.get_by_role("gridcell", name="blocks.0, position 0 'the':").click()
    expect(stage.locator(".pm-notes")).to_contain_text("the model now gives")
