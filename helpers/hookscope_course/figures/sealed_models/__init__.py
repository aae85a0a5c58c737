"""Four sealed models with a mistake each: ask as few questions as you can, then name the layer and the mistake."""
