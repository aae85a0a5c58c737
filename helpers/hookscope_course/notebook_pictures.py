"""Store each picture of a saved notebook as an output of its own, and put it back into its HTML.

A kernel sends a picture as one output: HTML with the image, its alternative text, its caption and its numbers. Viewers
that sanitize HTML remove the image, and LaTeX ignores all of it. So a saved notebook has two outputs instead: the image
as `image/png` with its alternative text as metadata, and below it the HTML without the image.
"""

from __future__ import annotations

import copy
import html
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["join_pictures", "split_pictures"]

_IMAGE = re.compile(r'(<figure style="margin:0">\n)<img alt="([^"]*)" src="data:image/png;base64,([\w+/=]+)"[^>]*>')
_MARK = "belongs_to_next_output"


def split_pictures(outputs: Iterable[Any]) -> list[Any]:
    r"""Return the outputs of a cell with each picture as an output of its own, above its caption and numbers.

    Example:
        >>> page = '<figure style="margin:0">\n<img alt="A 5." src="data:image/png;base64,iVBO" style="">\n</figure>'
        >>> both = {"output_type": "display_data", "data": {"text/html": page, "image/png": "iVBO"}, "metadata": {}}
        >>> [list(output["data"]) for output in split_pictures([both])]
        [['image/png'], ['text/html']]

    """
    split = []
    for output in outputs:
        data = output.get("data", {})
        page = _join_lines(data.get("text/html", ""))
        if "image/png" in data and (image := _IMAGE.search(page)):
            metadata = {"image/png": {"alt": html.unescape(image[2])}, "hookscope": {_MARK: True}}
            picture = {"output_type": "display_data", "data": {"image/png": image[3]}, "metadata": metadata}
            split.append(_as(output, picture))
            output = copy.deepcopy(output)
            del output["data"]["image/png"]
            output["data"]["text/html"] = _IMAGE.sub(r"\1", page, count=1).replace("\n\n", "\n", 1)
        split.append(output)
    return split


def join_pictures(outputs: Iterable[Any]) -> list[Any]:
    r"""Return the outputs of a cell with each picture in its HTML again, as a kernel sends it.

    Example:
        >>> from hookscope.pictures.picture import make_image_tag
        >>> page = f'<figure style="margin:0">\n{make_image_tag("A 5.", "iVBO")}\n</figure>'
        >>> both = {"output_type": "display_data", "data": {"image/png": "iVBO", "text/html": page}, "metadata": {}}
        >>> join_pictures(split_pictures([both])) == [both]
        True

    """
    from hookscope.pictures.picture import make_image_tag

    joined: list[Any] = []
    picture: Any = None
    for output in outputs:
        if output.get("metadata", {}).get("hookscope", {}).get(_MARK):
            picture = output
            continue
        if picture is not None:
            png = _join_lines(picture["data"]["image/png"]).strip()
            tag = make_image_tag(picture["metadata"]["image/png"]["alt"], png)
            output = copy.deepcopy(output)
            page = _join_lines(output["data"]["text/html"])
            head, start, rest = page.partition('<figure style="margin:0">\n')
            output["data"] |= {"image/png": png, "text/html": f"{head}{start}{tag}\n{rest}"}
            picture = None
        joined.append(output)
    return joined


def _join_lines(text: Any) -> str:
    return text if isinstance(text, str) else "".join(text)


def _as(like: Any, output: dict[str, Any]) -> Any:
    """Return an output as the type that the others have: nbformat's nodes, or plain dicts."""
    if type(like) is dict:
        return output
    from nbformat import from_dict

    return from_dict(output)
