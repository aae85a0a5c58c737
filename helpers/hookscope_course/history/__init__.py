"""How hooks behaved in every release of torch: the probe, its records, and a chart of them."""
