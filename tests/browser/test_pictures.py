"""A picture on a dark page: its frame is dark, and what it shows stays true."""

from __future__ import annotations

import pytest

from tests.shared.lab import Lab

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")
CODE = "import hookscope\nfrom hookscope import samples\nhookscope.image_grid(samples.digit(5))"
LOOK = """(image) => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    canvas.getContext("2d").drawImage(image, 0, 0);
    const { borderTopColor, backgroundColor, filter, mixBlendMode } = getComputedStyle(image);
    return [borderTopColor, [canvas.toDataURL(), backgroundColor, filter, mixBlendMode].join()];
}"""


def test_the_frame_of_a_picture_is_dark_on_a_dark_page(lab: Lab) -> None:
    lab.scratch("a_picture", CODE)
    image = lab.page.locator(".jp-OutputArea figure img")
    light, shown = image.evaluate(LOOK)
    assert light == "rgb(255, 255, 255)"
    lab.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
    try:
        lab.page.wait_for_function(f"(image) => ({LOOK})(image)[0] !== '{light}'", arg=image.element_handle())
        assert image.evaluate(LOOK) == ["rgb(66, 66, 66)", shown]
    finally:
        lab.command("apputils:change-theme", {"theme": "JupyterLab Light"})
