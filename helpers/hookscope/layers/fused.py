"""Find layers of torch that run as one fused operation unless a module inside them has a hook."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from hookscope.layers.modules import Modules, collect_submodules

__all__ = ["FusedLayer", "attention_would_be_fused", "find_fused"]


class FusedLayer:
    """An `nn.TransformerEncoderLayer`. A hook on it or inside it switches off its fused path.

    Source: `why_not_sparsity_fast_path` in torch/nn/modules/transformer.py, torch 2.15.
    """

    def __init__(self, name: str, module: nn.TransformerEncoderLayer) -> None:
        self.name = name
        self._module = module

    def would_run(self) -> bool:
        """Return whether the layer would take its fused path now without hooks. This does not check the inputs."""
        layer, attention = self._module, self._module.self_attn
        return (
            not (torch.is_grad_enabled() or layer.training or torch.is_autocast_enabled())
            and torch.backends.mha.get_fastpath_enabled()
            and attention.batch_first
            and attention.in_proj_bias is not None
            and attention._qkv_same_embed_dim
            and attention.num_heads % 2 == 0
            and bool(layer.activation_relu_or_gelu)
            and layer.norm1.eps == layer.norm2.eps
        )


def attention_would_be_fused(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an `nn.MultiheadAttention` would take its fused path for this call without a dispatch mode.

    Source: `why_not_fast_path` in torch/nn/modules/activation.py, torch 2.15.
    """
    if not isinstance(module, nn.MultiheadAttention):
        return False
    given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    query = given.get("query")
    return (
        isinstance(query, torch.Tensor)
        and query.dim() == 3
        and all(given.get(name) is query for name in ("key", "value"))
        and torch.backends.mha.get_fastpath_enabled()
        and not (module.training or torch.is_autocast_enabled())
        and not (
            torch.is_grad_enabled() and (query.requires_grad or any(each.requires_grad for each in module.parameters()))
        )
        and module.batch_first
        and module.num_heads % 2 == 0
        and module._qkv_same_embed_dim
        and module.in_proj_bias is not None
        and module.bias_k is None
        and not module.add_zero_attn
    )


def find_fused(modules: Modules, hooked: Collection[nn.Module]) -> dict[nn.Module, FusedLayer]:
    """Return the fused layer around each of these modules, for those inside one.

    Example:
        >>> layer = nn.TransformerEncoderLayer(4, 2, batch_first=True).eval()
        >>> found = find_fused(Modules(nn.Sequential(layer)), [layer.linear1])
        >>> found[layer.linear1].name
        '0'
        >>> with torch.no_grad():
        ...     found[layer.linear1].would_run()
        True

    """
    if not any(issubclass(kind, nn.TransformerEncoderLayer) for kind in modules.kinds):
        return {}
    return {
        inner: FusedLayer(name, module)
        for module, name in modules.names.items()
        if isinstance(module, nn.TransformerEncoderLayer)
        for inner in collect_submodules([module])
        if inner in hooked
    }
