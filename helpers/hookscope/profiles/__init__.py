"""Measure what each layer costs, forward and backward: time, FLOPs and memory."""

from hookscope.profiles.profile import profile
from hookscope.profiles.result import LayerProfile, Profile, Time

__all__ = ["LayerProfile", "Profile", "Time", "profile"]
