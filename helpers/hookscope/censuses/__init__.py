"""List and remove the hooks on a model, an optimizer or a tensor, and show where they were defined."""

from hookscope.censuses.census import KINDS, Census, HookEntry, census, removing_new_hooks

__all__ = ["KINDS", "Census", "HookEntry", "census", "removing_new_hooks"]
