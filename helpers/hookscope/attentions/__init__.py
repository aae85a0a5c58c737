"""Show what each head of each attention call looked at, and hold it against what the call returned."""

from hookscope.attentions.attention import attention
from hookscope.attentions.maps import AttentionMap, AttentionMaps

__all__ = ["AttentionMap", "AttentionMaps", "attention"]
