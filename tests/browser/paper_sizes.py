"""What a page is like on paper."""

import re
import zlib
from typing import Any

from playwright.sync_api import Page

OPERATION = re.compile(
    rb"(?P<save>\bq\b)|(?P<restore>\bQ\b)|(?P<matrix>(?:[-.\d]+\s+){6})(?P<to>cm|Tm)\b"
    rb"|/\w+\s+(?P<size>[-.\d]+)\s+Tf\b|(?P<text>\bT[jJ]\b)"
)


def print_page(page: Page, paper: Any = "A4") -> tuple[list[tuple[int, int]], float]:
    """Print a page as its own style asks for.

    Args:
        page: the page.
        paper: "A4" or "Letter".

    Returns:
        The size of each sheet of paper in points, and the size of the smallest type on them.

    """
    pdf = page.pdf(prefer_css_page_size=True, format=paper)
    (count,) = re.findall(rb"/Type /Pages\s*/Count (\d+)", pdf)
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert len(sizes) == int(count)
    return [(round(float(width)), round(float(height))) for width, height in sizes], min(find_type_sizes(pdf))


def find_type_sizes(pdf: bytes) -> list[float]:
    """The size in points of each piece of text, whatever transforms it: Chromium shrinks a page that is too wide."""
    found: list[float] = []
    for number in re.findall(rb"/Contents (\d+) 0 R", pdf):
        (body,) = re.findall(rb"\s%s 0 obj\s*<<[^>]*>>\s*stream\r?\n(.*?)\r?\nendstream" % number, pdf, re.DOTALL)
        scales, of_line, size = [1.0], 1.0, 0.0
        for each in OPERATION.finditer(re.sub(rb"<[\da-fA-F]*>", b"", zlib.decompress(body))):
            if each["save"]:
                scales.append(scales[-1])
            elif each["restore"]:
                scales.pop()
            elif each["size"]:
                size = float(each["size"])
            elif each["text"]:
                found.append(size * of_line * scales[-1])
            elif each["to"] == b"Tm":
                of_line = abs(float(each["matrix"].split()[3]))
            else:
                scales[-1] *= abs(float(each["matrix"].split()[3]))
    return found
