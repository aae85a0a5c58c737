"""Show what each head of each attention call looked at, and hold it against what the call returned."""

from hookscope.interp.attentions.attention import attention
from hookscope.interp.attentions.maps import AttentionMap, AttentionMaps

__all__ = ["AttentionMap", "AttentionMaps", "attention"]
