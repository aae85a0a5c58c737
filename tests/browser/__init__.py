"""What a learner does, in a real JupyterLab in a real browser."""
