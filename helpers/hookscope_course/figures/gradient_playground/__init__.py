"""Register hooks on the tensors of a small expression, call `retain_grad`, and see every gradient."""
