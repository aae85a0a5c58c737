"""Tests of the whole checkout: setup, pages and links, imports, benchmarks, commands."""
