"""A JupyterHub for one class on one machine."""
