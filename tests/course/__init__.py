"""The course: its builder, its exercises, its claims, its reference pages."""
