"""What tests of more than one room use."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the checkout."""
