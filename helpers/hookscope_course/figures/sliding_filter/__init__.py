"""Slide a filter over a digit, and watch the map fill with the sums."""
