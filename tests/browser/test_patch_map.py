"""The patch map in a real JupyterLab: by mouse and by keyboard, in both themes, narrow, with a name that attacks."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.shared.lab import SIZE, Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")

CODE = """
import torch
from torch import nn
import hookscope
from hookscope.widgets import PatchMap
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 16), nn.Linear(16, 9)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)])
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
net = Words().eval()
ids, others = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 7, 3, 4, 5]])
tokens = ["the", "<img src=x onerror=alert(1)>", "sat", "down", "there"]
vocabulary = ["zero", "the", "cat", "sat", "down", "there", "six", "<b>dog</b>", "eight"]
calls = []
def metric(logits):
    calls.append(1)
    if len(calls) == 21:
        raise KeyboardInterrupt
    return logits[0, -1, 2]
layers, five = ["embed", "blocks.*"], range(5)
options = hookscope.SweepOptions(tokens=tokens)
found = hookscope.sweep(
    net.train(), ids, layers=layers, source=others, positions=five, metric=metric, options=options
)
"""

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


def test_patch_map(lab: Lab) -> None:
    lab.scratch("patches", CODE, 'patches = PatchMap(found, vocabulary=vocabulary, layer="embed", column=1)\npatches')
    page = lab.page
    stage = lab.stage("Patch map")
    grid, caption, chosen = stage.get_by_role("grid"), stage.locator(".pm-caption"), stage.locator("[aria-selected]")
    chosen = stage.locator("[role=gridcell][aria-selected=true]")
    lines = stage.locator(".pm-lines .hs-code")
    expect(caption).to_contain_text("embed, position 1 '<img src=x …':")
    expect(stage.get_by_role("gridcell")).to_have_count(20)
    assert page.locator("img[src='x']").count() == 0
    expect(stage.locator(".pm-output caption")).to_contain_text(
        "Probabilities of the top words at position 4 of 5, 9 in"
    )
    texts = lab.kernel("print([f'{value:.4g}' for value in found.values[0].tolist()])")
    assert str(stage.locator("[data-row='0']").all_inner_texts()) == texts  # the numbers, in text, in their cells

    table = stage.locator("details", has=page.get_by_text("Numbers in a table"))
    table.locator("summary").click()
    assert str(table.locator("tbody tr").first.locator("td").all_inner_texts()) == texts
    table.locator("summary").click()

    # By mouse, and what is shown is what really running that edit gives.
    stage.get_by_role("gridcell", name="blocks.0, position 2 'sat':").click()
    expect(caption).to_contain_text("blocks.0, position 2 'sat':")
    expect(lines).to_contain_text("e.swap('blocks.0', seen, at[:, 2])")
    lab.told("print(patches.layer, patches.column, patches.problem)", "blocks.0 2")
    words = [row.split("\t")[0] for row in stage.locator(".pm-outcome .pm-output tbody tr").all_inner_texts()]
    number = f"vocabulary.index({words[0]!r})"
    after = stage.locator(".pm-outcome .pm-output tbody tr").first.locator("td").last.inner_text()
    assert lab.kernel(f"print('%.4g' % patches.outcome.after[0, -1].softmax(-1)[{number}])") == after

    # By keyboard: arrows, Home and End, the ends of the map; a letter is nobody's.
    grid.focus()
    for key in ("ArrowRight", "ArrowDown", "d", "d", "x", "m"):
        page.keyboard.press(key)
    lab.told("print(patches.layer, patches.column)", "blocks.1 3")
    expect(chosen).to_have_attribute(
        "aria-label", lab.kernel("""print(f"blocks.1, position 3 'down': {patches.cell.value:.4g}")""")
    )
    for key, cell in {
        "Home": "blocks.1 0",
        "End": "blocks.1 4",
        "PageUp": "embed 4",
        "Control+End": "blocks.2 4",
    }.items():
        page.keyboard.press(key)
        lab.told("print(patches.layer, patches.column)", cell)
    expect(grid).to_be_focused()
    active = grid.get_attribute("aria-activedescendant")
    assert page.locator(f"[id='{active}']").get_attribute("aria-selected") == "true"
    assert page.locator(".jp-CodeCell").count() == 2  # "d d" would have deleted one

    # It was left out by the interrupt: drawn apart, said so, and run now.
    expect(caption).to_contain_text("with the edit")
    expect(stage.locator(".pm-notes")).to_contain_text("The sweep was interrupted before this cell")
    expect(chosen).to_have_text("–")
    expect(chosen).to_have_class("pm-cell pm-left")
    expect(stage.locator(".pm-key")).to_contain_text("was not run: the sweep was interrupted.")

    # From Python; another position of the output; what it says to a model that has changed.
    lab.kernel("patches.layer, patches.column = 'blocks.0', 1")
    expect(caption).to_contain_text("blocks.0, position 1 ")
    stage.get_by_label("Position in the output", exact=True).select_option("1")
    expect(stage.locator(".pm-output caption")).to_contain_text("at position 1 of 5")
    lab.look(stage, "patches")
    lab.command("application:toggle-left-area")
    page.set_viewport_size({"width": 520, "height": 800})  # about 400 are left for it
    lab.settled(stage)
    wide, seen = stage.evaluate("part => [part.scrollWidth, part.clientWidth]")
    assert wide <= seen + 1
    assert 350 < seen < 440
    lab.screenshot("patches-400", stage)
    table.locator("summary").click()
    stage.get_by_text("Show the PyTorch code").click()
    for part in stage.locator(".pm-output tbody, .hs-code").all():
        assert part.evaluate(BROKEN) == []
    table.locator("summary").click()
    stage.get_by_text("Show the PyTorch code").click()
    page.set_viewport_size(SIZE)
    lab.command("application:toggle-left-area")
    lab.kernel("with torch.no_grad(): net.head.weight *= 2")
    stage.get_by_role("gridcell", name="blocks.0, position 0 'the':").click()
    expect(stage.locator(".pm-notes")).to_contain_text("the model now gives")
    stage.get_by_text("Show the PyTorch code").click()
    code = stage.get_by_role("group", name="The PyTorch code")
    expect(code).to_contain_text("Call model.eval(), and sweep again")  # dropout draws random numbers here
    expect(code).to_have_text(lab.kernel("print(patches.code)"))
    lab.screenshot("patches-lines", stage)
