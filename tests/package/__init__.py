"""Tests of the package, with a folder for each package in hookscope."""
