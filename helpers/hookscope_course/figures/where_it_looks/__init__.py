"""Click a class and see which positions of a layer speak for it; take a step, and see the model change its mind."""
