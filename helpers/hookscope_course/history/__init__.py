"""How hooks behaved in every release of torch: the probe, the records it made, and what to read from them."""
