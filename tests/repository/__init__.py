"""The checkout as a whole: set-up, pages and links, directions, benchmarks, commands."""
