"""Tests of the configurations for classroom servers."""
