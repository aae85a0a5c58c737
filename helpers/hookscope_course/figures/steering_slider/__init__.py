"""Move the strength of a steering vector on a slider, and read what the model writes."""
