"""Dots for what many stories lose without a head; a click shows the story."""
