"""Push what a layer returns toward another class, step by step, and see which scans the model reads differently."""
