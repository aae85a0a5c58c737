"""Tests of what a learner does, in a real JupyterLab and a real browser."""
