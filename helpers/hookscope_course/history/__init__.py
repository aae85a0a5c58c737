"""How hooks behaved in every release of torch: the facts, a record of each release, and a chart of them."""
