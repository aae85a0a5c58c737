"""Measure time, FLOPs and memory of each layer, in forward and in backward."""

from hookscope.interp.profiles.profile import profile
from hookscope.interp.profiles.result import LayerProfile, Profile, Time

__all__ = ["LayerProfile", "Profile", "Time", "profile"]
