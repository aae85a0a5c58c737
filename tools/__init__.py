"""Tools for contributors: the architecture page, and the check after each edit."""
