"""Turn the notebooks and all other pages into one static site, build/site/html.

    python -m lessons.site

`pages` makes the texts: a chapter with its answers folded away, the teacher's pages, the reference of the package;
`widget_recordings` and `guess_recordings` record what widgets and questions answer, so that they work in the page
without a kernel; `markdown_pages` writes what programs read; Sphinx makes the site of it, with the settings in
`conf.py` here. Nothing on the site comes from the network.
"""
