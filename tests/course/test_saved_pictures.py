"""Pictures of a saved notebook: small where nobody sees the difference, and shown by every viewer."""

import io
import json
import re

import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter, LatexExporter, MarkdownExporter
from PIL import Image

from hookscope_course.learner.copies import list_chapters
from hookscope_course.paths import NOTEBOOKS
from lessons.build.image_compression import shrink


def png(pixels, mode=None):
    file = io.BytesIO()
    Image.fromarray(pixels, mode).save(file, "PNG", optimize=True)
    return file.getvalue()


def opened(pixels):
    image = Image.open(io.BytesIO(shrink(png(pixels))))
    return image.mode, np.asarray(image.convert("RGB")).astype(int)


def test_up_to_256_colours_stay_as_they_are():
    grey = np.random.default_rng(0).permutation(np.arange(128 * 128, dtype=np.uint8)).reshape(128, 128)
    few = np.stack([grey, 255 - grey, grey // 2], axis=-1)
    mode, pixels = opened(few)
    assert mode == "P"
    assert (pixels == few).all()


def test_shades_that_nobody_tells_apart_share_a_place_in_the_palette():
    x, y = np.meshgrid(np.arange(200), np.arange(200))
    smooth = np.stack([x, y, np.full_like(x, 90)], axis=-1)
    grainy = (smooth + np.random.default_rng(0).integers(0, 8, smooth.shape)).astype(np.uint8)
    mode, pixels = opened(grainy)
    assert mode == "P"
    assert 0 < np.abs(pixels - grainy).max() <= 24
    assert len(shrink(png(grainy))) < len(png(grainy)) / 2
    mode, pixels = opened(smooth.astype(np.uint8))  # whose rows differ by the same everywhere: small as it is
    assert mode == "RGB"
    assert (pixels == smooth).all()


def test_colours_that_a_palette_would_change_are_all_kept():
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    mode, pixels = opened(noise)
    assert mode == "RGB"
    assert (pixels == noise).all()


def test_what_is_partly_transparent_stays_as_it_is():
    glass = np.zeros((50, 50, 4), dtype=np.uint8)
    glass[:20, :, 3] = 255
    assert shrink(png(glass)) == png(glass)


def test_no_picture_of_the_course_is_in_html_alone():
    for path in list_chapters(NOTEBOOKS):
        outputs = [cell.get("outputs", []) for cell in nbformat.read(path, as_version=4).cells]
        assert 'src=\\"data:image/' not in json.dumps(outputs), path.name


def check_markdown_and_latex(notebook, saved):
    _, files = MarkdownExporter().from_notebook_node(notebook)
    assert len(files["outputs"]) == len(saved)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]  # texts would need pandoc
    for cell in notebook.cells:
        cell.source = ""
    latex, files = LatexExporter().from_notebook_node(notebook)
    assert len(files["outputs"]) == len(saved)
    assert all(name in latex for name in files["outputs"])


@pytest.mark.parametrize(
    "path", [path for path in list_chapters(NOTEBOOKS) if path.stem[:2] < "90"], ids=lambda path: path.stem[:2]
)
def test_every_viewer_shows_the_pictures_of_a_saved_notebook_and_their_alternative_texts(path):
    notebook = nbformat.read(path, as_version=4)
    saved = [
        (output.data["image/png"], output.metadata["image/png"]["alt"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(saved) >= 2
    page, _ = HTMLExporter(sanitize_html=True, template_name="classic").from_notebook_node(notebook)
    shown = BeautifulSoup(page, "html.parser").find_all("img", src=re.compile("^data:image/png"))
    assert [(image["src"].partition(",")[2].strip(), image["alt"]) for image in shown] == saved
    if path.stem[:2] == "05":  # how a picture is stored is the same in all of them
        check_markdown_and_latex(notebook, saved)
