"""Both ends of a module: two gates that stop a gradient, and three gradients of which some go dark."""
