"""Say which hooks are on a model, an optimizer or a tensor right now, where they come from, and take them off."""

from hookscope.censuses.census import KINDS, Census, HookEntry, census, removing_new_hooks

__all__ = ["KINDS", "Census", "HookEntry", "census", "removing_new_hooks"]
