"""The tests; the notebooks are tests, too."""
