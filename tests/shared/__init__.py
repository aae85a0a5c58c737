"""Code that several folders of tests share."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the checkout."""
PATIENCE = 600
"""Seconds for what has to come. A test that passes does not wait; a busy machine may be ten times as slow."""
