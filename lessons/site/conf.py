"""Sphinx's settings for the site; `python -m lessons.site` copies this file into the folder that it builds from."""

import html
import re
from typing import Any

from docutils import nodes  # type: ignore[import-untyped]

from hookscope import __version__
from hookscope.error_pages import SITE
from lessons.site import addresses
from lessons.site.pages import DOWNLOAD_TEXT

project = "hookscope"
author = "The hookscope authors"
copyright = author  # noqa: A001  # Sphinx's name for it
release = version = __version__
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # a page may begin with ##; a cell may have a %magic

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_execution_mode = "off"  # what is shown is what the tests hold
nb_ipywidgets_js: dict[str, object] = {}
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None), ("html", "text/html", 1)]
nb_merge_streams = True

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype, napoleon_use_ivar = False, True
napoleon_google_docstring, napoleon_numpy_docstring = True, False

html_theme = "furo"
html_title = "hookscope"
html_favicon = "_static/favicon.svg"
html_baseurl = addresses.get_site_address()
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("site.js", "guesses.js")]  # modules do not load from a disk
html_copy_source = html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": False}  # the arrow keys belong to the widgets
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Any) -> None:
    """Let Sphinx call what follows."""
    app.connect("autodoc-process-signature", _leave_out_unknown)
    app.connect("autodoc-process-docstring", _plain_bars)
    app.connect("autodoc-process-docstring", _link_limits)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)  # before napoleon
    app.connect("html-page-context", _describe)


def _leave_out_unknown(
    app: Any, what: str, name: str, thing: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """`**_unknown` takes the keywords that do not exist, for an error that lists those that do."""
    return signature and re.sub(r", \*\*_unknown(: *[\w'.]+)?", "", signature), returned


def _plain_bars(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Our docstrings write |x| for a size; reStructuredText would replace it by something."""
    lines[:] = [line if line.lstrip().startswith(">>>") else line.replace("|x|", r"\|x\|") for line in lines]


def _keep_colons(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Of a property, napoleon takes the text before a colon for a type."""
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", " \u2013 ")


def _link_limits(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Our docstrings name a page by its address; here it becomes a link within the site."""
    address = re.compile(rf"{re.escape(SITE)}/(\w+/\w+)\.html")
    lines[:] = [line if line.lstrip().startswith(">>>") else address.sub(r":doc:`/\1`", line) for line in lines]


def _describe(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Say in the page's head what it is about, and where it is as Markdown."""
    if tree is None:
        return
    texts = [" ".join(each.astext().split()) for each in tree.findall(nodes.paragraph)]
    about = next((text for text in texts if len(text) > 40 and DOWNLOAD_TEXT not in text), project)
    about = html.escape(about if len(about) <= 200 else f"{about[:200].rpartition(' ')[0]} …")
    title = html.escape(tree.next_node(nodes.title).astext() if tree.next_node(nodes.title) else project)
    tags = [
        f'<meta name="description" content="{about}">',
        f'<meta property="og:title" content="{title}">',
        f'<meta property="og:description" content="{about}">',
        '<meta property="og:type" content="website">',
        f'<link rel="alternate" type="text/markdown" href="{page.rpartition("/")[2]}.md">',
    ]
    if base := addresses.get_site_address():  # an image without an address is shown nowhere
        tags.append(f'<meta property="og:image" content="{base}_static/card.png">')
        tags.append('<meta name="twitter:card" content="summary_large_image">')
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)
