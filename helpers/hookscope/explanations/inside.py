"""Write edits that reach inside a call: functions that stand for torch's own while the layer runs."""

from __future__ import annotations

from textwrap import indent
from typing import Any

from hookscope.edits.layer_edit import LayerEdit

__all__ = ["INSIDE", "SLOW", "UNCHANGED", "cut_lines", "head_lines", "registered"]

UNCHANGED = "return linear(merged, weight, bias)"
"""What `head_lines` writes where a call stays as it is."""

INSIDE = """\
def inside(layer, name, edit):
    \"\"\"Let what edit() makes stand for a function of torch while the layer runs.\"\"\"
    before = []

    def on(module, args, kwargs):
        query = args[0] if args else kwargs.get("query")
        before.append(getattr(nn.functional, name))
        setattr(nn.functional, name, edit(before[-1], module, query))

    def off(module, args, output):
        setattr(nn.functional, name, before.pop())

    return [
        layer.register_forward_pre_hook(on, with_kwargs=True),
        layer.register_forward_hook(off, prepend=True, always_call=True),
    ]"""


SLOW = (
    "fast = torch.backends.mha.get_fastpath_enabled()",
    "    torch.backends.mha.set_fastpath_enabled(False)  # it calls no such functions",
    "    torch.backends.mha.set_fastpath_enabled(fast)",
)
"""Lines around a pass: what is to be known before it, what to do in its `try`, and in its `finally`."""


def registered(hook: str, target: LayerEdit) -> list[str]:
    """Write the line that puts it on a layer; a fused path would call neither function."""
    name = "linear" if target.spec.to == "heads" else "scaled_dot_product_attention"
    return [f'    handles += inside(layer, "{name}", {hook})']


def head_lines(hook: str, flipped: bool, start: list[str], new: list[str]) -> str:
    """Write the edit of heads in what goes into the output projection of `nn.MultiheadAttention`.

    Args:
        hook: its name.
        flipped: whether tokens come before samples there, though not outside of the layer.
        start: lines that say which call this is, and whether it is meant.
        new: lines that make `new` of `tensor`; or return what `UNCHANGED` does.

    """
    view = "query.shape[1], query.shape[0], -1).transpose(0, 1" if flipped else "query.shape"
    body = [
        "if weight is not module.out_proj.weight:",
        f"    {UNCHANGED}  # of what goes in",
        *start,
        "# Heads lie side by side.",
        f"tensor = merged.view({view})",
        *(line.replace("return None", UNCHANGED) for line in new),
    ]
    if new[-1] != UNCHANGED:
        back = "new.transpose(0, 1)" if flipped else "new"
        body.append(f"return linear({back}.reshape(merged.shape), weight, bias)")
    return _made(hook, "linear", "project", "merged, weight, bias=None", body)


def cut_lines(hook: str, target: LayerEdit, start: list[str], rows: str) -> str:
    """Write a cut: attention once more, with a mask that also hides the keys, for the heads and queries that are meant.

    Args:
        hook: its name.
        target: the edit.
        start: lines that say which call this is, and whether it is meant.
        rows: the samples, as an index.

    """
    found: dict[int, Any] = {
        int(key.split()[1]): edges for key, edges in sorted(target.held.items()) if key.startswith("edges ")
    }
    calls = [f"    {number}: {edges}," for number, edges in sorted(found.items())]
    body = [
        'options = {"scale": scale, "enable_gqa": enable_gqa}',
        "out = attention(query, key, value, attn_mask, dropout_p, is_causal, **options)",
        *start,
        "edges = {  # call -> head, query, key",
        *calls,
        "}.get(number, [])",
        "mask = query.new_zeros(*query.shape[:-1], key.shape[-2])",
        "if is_causal:",
        "    later = torch.ones_like(mask, dtype=torch.bool).triu(1)",
        "    mask = mask.masked_fill(later, -torch.inf)",
        "if attn_mask is not None and attn_mask.dtype is torch.bool:",
        "    mask = mask.masked_fill(~attn_mask, -torch.inf)",
        "elif attn_mask is not None:",
        "    mask = mask + attn_mask",
        "for head, place, cut in edges:",
        f"    mask[{rows}, head, place, cut] = -torch.inf",
        "without = attention(query, key, value, mask, **options)",
        "new = out.clone()",
        "for head, place, _ in edges:",
        f"    new[{rows}, head, place] = without[{rows}, head, place]",
        "return new",
    ]
    given = (
        "\n    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,\n    scale=None, enable_gqa=False,\n"
    )
    return _made(hook, "attention", "attend", given, body)


def _made(hook: str, original: str, name: str, given: str, body: list[str]) -> str:
    inner = [*f"def {name}({given}):".split("\n"), *(f"    {line}" for line in body), "", f"return {name}"]
    return "\n".join([f"def {hook}({original}, module, query):", indent("\n".join(inner), "    ")])
