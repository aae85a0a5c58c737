"""What a page is like on paper."""

import re

from playwright.sync_api import Page


def print_page(page: Page) -> list[tuple[int, int]]:
    """Print a page as its own style asks for, and return the size of each sheet of paper, in points."""
    pdf = page.pdf(prefer_css_page_size=True)
    (count,) = re.findall(rb"/Type /Pages\s*/Count (\d+)", pdf)
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert len(sizes) == int(count)
    return [(round(float(width)), round(float(height))) for width, height in sizes]
