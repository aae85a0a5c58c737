"""All that must stay true; the notebooks are tests, too."""
