"""Two pictures side by side, to compare."""

from __future__ import annotations

import io

from hookscope.pictures.picture import Picture

__all__ = ["draw_pair"]

_GAP, _TITLE = 24, 26  # pixels between the two, and for the title above each


def draw_pair(left: Picture, right: Picture) -> Picture:
    """Draw two pictures side by side, each with its title above it.

    Args:
        left: what `feature_grid` or `image_grid` returns, with a title.
        right: the picture to compare it with.

    Example:
        >>> import torch
        >>> from hookscope import feature_grid
        >>> maps = torch.tensor([[[0.0, 1.0]], [[0.0, 9.0]]])
        >>> own = feature_grid(maps, title="Own scales")
        >>> draw_pair(own, feature_grid(maps, scale="shared", title="One scale")).caption
        'Own scales | One scale'

    """
    from PIL import Image, ImageDraw, ImageFont

    both = (left, right)
    titles = [each.caption.partition("\n")[0].partition(":")[0] for each in both]
    images = [Image.open(io.BytesIO(each.png)).convert("RGB") for each in both]
    font = ImageFont.load_default(size=15)
    wide = [max(image.width, int(font.getlength(title)) + 8) for image, title in zip(images, titles, strict=True)]
    size = (sum(wide) + _GAP, _TITLE + max(image.height for image in images))
    canvas = Image.new("RGB", size, images[0].getpixel((0, 0)))
    pen, start = ImageDraw.Draw(canvas), 0
    for image, title, across in zip(images, titles, wide, strict=True):
        pen.text((start + 6, 4), title, fill=(20, 20, 20), font=font)
        canvas.paste(image, (start, _TITLE))
        start += across + _GAP
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG")
    rows = [{"picture": title, **row} for each, title in zip(both, titles, strict=True) for row in each.rows]
    return Picture(
        buffer.getvalue(), f"On the left: {both[0].alt} On the right: {both[1].alt}", " | ".join(titles), rows
    )
