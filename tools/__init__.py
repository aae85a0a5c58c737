"""Tools for contributors: the architecture page, and the quick check after each edit."""
