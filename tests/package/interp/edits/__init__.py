"""What `hookscope.edit` promises: what it changes, what it refuses, and what it leaves alone."""
