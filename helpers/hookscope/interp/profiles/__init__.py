"""Measure what each layer costs, forward and backward: time, FLOPs and memory."""

from hookscope.interp.profiles.profile import profile
from hookscope.interp.profiles.result import LayerProfile, Profile, Time

__all__ = ["LayerProfile", "Profile", "Time", "profile"]
