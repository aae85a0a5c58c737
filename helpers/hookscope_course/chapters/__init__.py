"""Code that one chapter needs beside its figures: data, models, recorded runs, the reports of the capstones.

Each file begins with the number of its chapter, or of the first of them. What is drawn for a chapter and belongs to no
report is in `figures`.
"""
