"""The package's tests and all chapters on every promised torch and Python, as one table in docs/compatibility.md.

    python -m tools.matrix                        every pair in PAIRS (two hours, 10 GB of disk at a time)
    python -m tools.matrix 2.14 2.15:3.13         only these
    python -m tools.matrix 2.16 --against 2.15    what a new release changes: cells saved on 2.15, held to that on 2.16

`environments` installs a torch with all that was pinned for the newest one, as far as it goes with it; `running` runs
the tests and the notebooks there and reads what failed; `report` writes records.json and the table.
"""
