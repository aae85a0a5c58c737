"""The course in other notebooks than JupyterLab: tried in a browser, and docs/compatibility.md says what works in each.

    make frontends

`trying` says what is tried, `jupyter` and `marimo` how it is opened; records.json keeps what came of it.
"""
