"""The attention weights of each head in a pass, checked against the result of each call."""

from hookscope.interp.attentions.attention import attention
from hookscope.interp.attentions.maps import AttentionMap, AttentionMaps

__all__ = ["AttentionMap", "AttentionMaps", "attention"]
