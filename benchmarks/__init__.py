"""Compare hookscope with other tools and with plain hooks: `make bench`."""
