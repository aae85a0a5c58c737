"""Compare what a legacy and a full backward hook get on a layer, and see why."""
