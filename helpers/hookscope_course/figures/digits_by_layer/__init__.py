"""See after which layer digits lie with their class: a scatter with a slider for the layer, and a chart over depth."""
