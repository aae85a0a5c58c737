"""A learner's own copy of the course: made without outputs and solutions, kept up to date, never overwritten.

Nothing here imports torch: it runs before every `make lab`.
"""
