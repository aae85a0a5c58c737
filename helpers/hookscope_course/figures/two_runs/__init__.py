"""Two runs and one arrow: carry a value from a clean run into a corrupted one, and find the cells that matter."""
