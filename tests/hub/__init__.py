"""The hub: what a teacher starts for a class, tested with the real JupyterHub."""
