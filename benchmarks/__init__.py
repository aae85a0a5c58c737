"""Compare hookscope with other tools and with the lowest possible cost: `make bench`."""
