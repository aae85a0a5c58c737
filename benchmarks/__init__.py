"""hookscope against its peers and against the floor, as ratios within one run: `make bench`."""
