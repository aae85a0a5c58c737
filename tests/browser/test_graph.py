"""The autograd graph as JupyterLab draws it: Mermaid where that can be read, and no name is more than a name."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import nbformat
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import expect
from torch import nn

from hookscope.graphs.graph import Graph, graph
from tests.shared.lab import KERNEL, Lab

HOSTILE = '<img src=x onerror=alert(1)>"]; click n0 call alert() %% $x_{1}$ `#quot;`\n end'
NAME = "graph_in_lab.ipynb"
SOURCE = f"""
import torch
from torch import nn
from hookscope.graphs.graph import graph
a, b, c, d = (torch.tensor(float(n), requires_grad=True) for n in (2, 3, 4, 5))
b.register_hook(print)
graph(a * b * c * d, {{"end": a, "graph": b, "a[0]": c, {HOSTILE!r}: d}})
""".strip()
# Mermaid breaks the line at a backslash and n, even if they are escaped.
TEXTS = {
    "0 MulBackward0()", "1 MulBackward0()", "2 MulBackward0()", "3 AccumulateGradend ()",
    "4 AccumulateGradgraph ()tensor hook print", "5 AccumulateGrada[0] ()",
    "6 AccumulateGrad" + HOSTILE.replace("\n", "") + " ()",
}  # fmt: skip


@pytest.fixture
def opened(lab: Lab) -> Lab:
    """Open a notebook with saved outputs that JupyterLab has no reason to trust."""
    cells = []
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
    names: dict[str, object] = {}
    exec(SOURCE.rpartition("\n")[0], names)
    small = eval(SOURCE.rpartition("\n")[2], names)
    for source, shown in ((SOURCE, small), ("'large'", graph(model(torch.ones(1, 2)), model=model))):
        assert isinstance(shown, Graph)
        data, metadata = DisplayFormatter().format(shown)
        data["image/png"] = b64encode(data["image/png"]).decode()
        output = new_output("execute_result", data, metadata=metadata, execution_count=1)
        cells.append(new_code_cell(source, outputs=[output]))
    nbformat.write(new_notebook(cells=cells, metadata=KERNEL), Path(lab.folder) / NAME)
    lab.console_errors.clear()
    lab.open(NAME, again=True)
    return lab


def test_jupyterlab_draws_a_small_graph_as_mermaid(opened: Lab) -> None:
    drawn = opened.page.locator(".jp-RenderedMermaid")
    expect(drawn.locator("img")).to_have_count(1)
    assert texts(opened) == TEXTS
    # What a screen reader gets: the size as name of the image, and every node.
    assert drawn.locator("img").get_attribute("alt") == "Autograd graph of 7 nodes, 6 edges, 4 leaves"
    expect(drawn.locator("figcaption")).to_contain_text("4 AccumulateGrad, graph (); tensor hook print.")
    expect(drawn.locator("figcaption")).to_contain_text("6 AccumulateGrad, <img src=x onerror=alert(1)>")
    picture = opened.page.locator('.jp-OutputArea-output[data-mime-type="text/html"] img')
    assert str(picture.get_attribute("alt")).startswith("Autograd graph of 40 nodes")
    # And the same when the cell is run.
    drawn.evaluate("element => element.remove()")
    opened.page.locator(".jp-Notebook .jp-Cell").first.locator(".cm-content").click()
    opened.page.keyboard.press("Control+Enter")
    expect(drawn.locator("img")).to_have_count(1)
    assert texts(opened) == TEXTS
    assert opened.page.locator('img[src="x"]').count() == 0
    assert opened.outside == []
    assert opened.console_errors == []


def test_arrows_are_seen_on_a_page_that_turned_dark(opened: Lab) -> None:
    """JupyterLab keeps a drawing as it is when the theme changes."""
    expect(opened.page.locator(".jp-RenderedMermaid img")).to_have_count(1)
    edges = [path for path in svg(opened).iter() if "flowchart-link" in path.get("class", "")]
    colours = [edge.get("style", "").replace(" ", "") for edge in edges if "invisible" not in edge.get("class", "")]
    assert len(colours) == 6
    assert all("stroke:#7a8694" in colour for colour in colours)


def svg(lab: Lab) -> ElementTree.Element:
    source = str(lab.page.locator(".jp-RenderedMermaid img").get_attribute("src"))
    assert source.startswith("data:image/svg+xml,")
    return ElementTree.fromstring(unquote(source.partition(",")[2]))


def texts(lab: Lab) -> set[str]:
    """Return the texts of all nodes but the caption, and check that nothing but text is in them."""
    root = svg(lab)
    assert not [element for element in root.iter() if element.tag.endswith(("}img", "}script", "}a"))]
    nodes = [element for element in root.iter() if element.get("class", "").startswith("node ")]
    found = {"".join(node.itertext()).strip() for node in nodes}
    (caption,) = {text for text in found if text.startswith("Autograd graph behind")}
    assert "7 nodes, 6 edges, 4 leaves." in caption
    assert "cannot be listed." in caption
    return found - {caption}
