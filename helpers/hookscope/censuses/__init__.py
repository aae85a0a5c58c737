"""List the hooks on a model, an optimizer or a tensor, with where they were defined, and remove them."""

from hookscope.censuses.census import KINDS, Census, HookEntry, census, removing_new_hooks

__all__ = ["KINDS", "Census", "HookEntry", "census", "removing_new_hooks"]
