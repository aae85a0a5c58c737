"""See which tokens a hook hits in `generate()`: calls downwards, tokens to the right, with and without the KV cache."""
