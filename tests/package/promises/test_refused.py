"""What a tool could not do is an error or a note that names the layer, and what to type instead."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.forward_ad import dual_level, make_dual
from torch.utils.checkpoint import checkpoint

from hookscope import (
    at,
    attention,
    capture,
    census,
    collect,
    compare_backward_hooks,
    edit,
    explain,
    graph,
    profile,
    record,
)
from hookscope.interp.lenses import Streams
from hookscope.widgets import LayerPicker
from tests.shared.awkward_models import Do, Net, Result
from tests.shared.language_models import READER_IDS, Reader
from tests.shared.sweep_helpers import sweep

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
Tool = Callable[[nn.Module, tuple[Any, ...]], Any]

# --- models


def hooked(net: nn.Module, layer: str, register: str, function: Callable[..., Any] = lambda *_: None) -> nn.Module:
    handle = getattr(net.get_submodule(layer), register)(function)
    net.handle = handle  # type: ignore[assignment]
    return net


def returning_what_a_hook_kept() -> nn.Module:
    kept: list[Tensor] = []
    first = hooked(nn.Linear(4, 4), "", "register_forward_hook", lambda module, args, output: kept.append(output))
    return Net(lambda self, x: {"last": self.b(self.a(x)), "first": kept.pop()}, a=first, b=nn.Tanh())


def differentiating() -> nn.Module:
    return Net(lambda self, x: torch.autograd.grad(self.a(x).sum(), [self.a.weight])[0], a=nn.Linear(4, 4))


def without_hook(net: nn.Module) -> nn.Module:
    net.handle.remove()  # type: ignore[union-attr, operator]
    return net


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))


def fused() -> nn.Module:
    return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()


class Inside(nn.Module):
    """Uses its layers without calling them, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.direct, self.weight_only, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.several, self.kept = nn.ModuleList([nn.ReLU()]), [nn.Tanh()]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.kept[0](F.linear(self.direct.forward(x), self.weight_only.weight))
        return y


def keeping() -> nn.Module:
    net = in_place()
    net.kept = [nn.Tanh()]  # type: ignore[assignment]
    return net


def stepping() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].weight.register_post_accumulate_grad_hook(print)
    return net


def late() -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        self.new = nn.Linear(4, 4)
        return nn.Tanh()(self.new(self.fc(x)))

    return nn.Sequential(Net(run, fc=nn.Linear(4, 4)))


def fails_and_goes_on() -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        try:
            return self.bad(x)
        except RuntimeError:
            return x

    return Net(run, bad=nn.Linear(9, 9))


def compiled_before() -> nn.Module:
    torch._dynamo.reset()  # what earlier tests made it skip would run as Python here, and be seen
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run = torch.compile(net, backend="eager")
    run(X)
    return Net(lambda self, x: run(x), inner=net)


def many_kinds() -> nn.Module:
    return Net(
        lambda self, x: self.last([self.deep(self.held(self.attn(*[self.one(x)] * 3)[0]).parts[0])[0][1]]),
        one=nn.Linear(4, 4),
        attn=nn.MultiheadAttention(4, 2, batch_first=True),
        held=Do(lambda x: Result(x * 1, [x * 3])),
        deep=Do(lambda x: ((x, x * 2), x)),
        last=Do(lambda items: items[0] * 2),
    )


def replaced(net: nn.Module) -> nn.Module:
    net.forward = nn.Linear(4, 4).forward
    return net


# --- tools


def watched(tool: Callable[..., Any], *layers: Any, backward: bool = True, **options: Any) -> Tool:
    """Run a model inside a block, and give what the block says of it."""

    def run(net: nn.Module, args: tuple[Any, ...]) -> Any:
        with tool(net, *layers, **options) as seen:
            output = net(*args)
            if backward and isinstance(output, Tensor) and output.requires_grad:
                output.sum().backward()
        return seen

    return run


def asked(question: Callable[[Any], Any], *layers: Any, **options: Any) -> Tool:
    """Ask a capture for something."""
    return lambda net, args: question(watched(capture, *layers, **options)(net, args))


def edited(layer: str, verb: str = "scale", *given: Any, backward: bool = True, **where: Any) -> Tool:
    def run(net: nn.Module, args: tuple[Any, ...]) -> Any:
        with edit(net) as e:
            getattr(e, verb)(layer, *(given or (2.0,)), **where)
            output = net(*args)
            if backward and isinstance(output, Tensor) and output.requires_grad:
                output.sum().backward()
        return e

    return run


def under(mode: Callable[[], Any], tool: Tool) -> Tool:
    def run(net: nn.Module, args: tuple[Any, ...]) -> Any:
        with mode():
            return tool(net, args)

    return run


def collected(*layers: Any, **options: Any) -> Tool:
    return lambda net, args: collect(net, [args[0]], *layers, to="never", progress=False, **options)


def explained(tool: Tool) -> Tool:
    return lambda net, args: explain(tool(net, args))


def explained_edit(write: Callable[[Any], Any]) -> Tool:
    def run(net: nn.Module, args: tuple[Any, ...]) -> Any:
        with edit(net) as e:
            write(e)
            (net(*args) + net.one.bias).sum().backward()
        return explain(e)

    return run


def explained_error(net: nn.Module, args: tuple[Any, ...]) -> Any:
    with suppress(RuntimeError), capture(net) as seen:
        net(*args)
    return explain(seen)


Row = tuple[Tool, Callable[[], nn.Module], tuple[Any, ...], str, str]


def unfit(way: str, verb: str, *given: Any, **where: Any) -> Row:
    """Edit with a value that does not fit."""
    return edited("0", verb, *given, **where), in_place, (X,), r"edit 1 \(.*layer '0', call 1", way


def unexplained(where: str, write: Callable[[Any], Any], way: str = "") -> Row:
    """Explain an edit for which there are no plain lines."""
    return explained_edit(write), many_kinds, (torch.ones(2, 3, 4),), where, way


GRAD = X.clone().requires_grad_()
FORWARD = {"kinds": ("forward_pre", "forward")}
EVAL = torch.no_grad

# tool, model, its inputs; what says where it was, what says what to type (or why nothing can be typed)
ROWS: dict[str, Row] = {
    # -- hooks switch something off
    "capture: a fused path": (
        under(EVAL, watched(capture, "0.linear1")), fused, (torch.ones(1, 3, 8),), "layer '0'", "fused path",
    ),
    "record: a fused path": (
        under(EVAL, watched(record)), fused, (torch.ones(1, 3, 8),), r"layer 0 \(TransformerEncoderLayer\)",
        "fused path.*no layer inside it is called",
    ),
    "edit: a fused path": (
        under(EVAL, edited("0.linear1")), fused, (torch.ones(1, 3, 8),), "layer '0'", "fused path",
    ),
    "profile: a fused path": (
        under(EVAL, lambda net, args: profile(net, *args, repeats=1, warmup=0)), fused, (torch.ones(1, 3, 8),),
        "layer '0'", "fused path.*the times without hooks include it",
    ),
    # -- full backward hooks
    "record: an in-place layer": (
        watched(record), in_place, (X,), r"inside layer 1 \(ReLU\), after layer 0 \(Linear\) returned",
        r'with kinds=\("forward_pre", "forward"\)',
    ),
    "record: an in-place operation after the model": (
        lambda net, args: watched(record)(Net(lambda self, x: self.a(x).add_(1), a=net), args), nn.Identity, (GRAD,),
        r"after layer a \(Identity\)", r'with kinds=\("forward_pre", "forward"\)',
    ),
    "record: a transform of torch.func": (
        watched(record), lambda: Net(lambda self, x: torch.func.grad(lambda y: self.a(y).sum())(x), a=nn.Linear(4, 4)),
        (X,), "inside (layer|the with-block)", r"torch\.func\. Record with kinds",
    ),
    "record: what torch.return_types holds": (
        watched(record), lambda: nn.Sequential(nn.ReLU(), Do(lambda x: x.max(1))), (GRAD,),
        r"after layer 1 \(Do\) returned", r"cannot rebuild.*kinds=",
    ),
    "record: a dict": (
        watched(record), lambda: nn.Sequential(nn.ReLU(), Do(lambda x: {"a": x})), (GRAD,),
        r"Layer 1 \(Do\) returns a dict", "need a tensor or a tuple of tensors",
    ),
    "record: a plain input": (
        watched(record), lambda: nn.Sequential(nn.Linear(4, 4)), (X,), "No input of layer 0", r"requires_grad_\(\)",
    ),
    "record: keyword arguments": (
        watched(record), lambda: Net(lambda self, x: self.a(input=x), a=nn.Linear(4, 4)), (GRAD,),
        r"Layer a \(Linear\) was called with keyword arguments only", r"\(\) as grad_input",
    ),
    "record: one tensor twice": (
        watched(record), lambda: nn.MultiheadAttention(4, 2), (X, X, X),
        r"Layer \(root\) \(MultiheadAttention\) received the same tensor", r'with kinds=\("forward_pre", "forward"\)',
    ),
    "record: a legacy hook": (
        watched(record), lambda: hooked(in_place(), "0", "register_backward_hook"), (X,),
        r"Layer 0 \(Linear\) has a legacy backward hook", "Remove the legacy hook",
    ),
    "record: a legacy hook that is gone": (
        watched(record), lambda: without_hook(hooked(nn.Sequential(nn.Linear(4, 4)), "0", "register_backward_hook")),
        (GRAD,), r"Layer 0 \(Linear\) once had a legacy", r"census\(model\)\.remove_all\(\)",
    ),
    "record: a layer that returns its input": (
        watched(record), lambda: nn.Sequential(nn.Linear(4, 4), nn.Identity()), (X,),
        r"Layer 1 \(Identity\) returned its input itself", r"`output is input`.*kinds=",
    ),
    "record: forward-mode AD": (
        under(dual_level, watched(record)), lambda: Net(lambda self, x: self.a(make_dual(x, x)), a=nn.Linear(4, 4)),
        (X,), r"after layer a \(Linear\) returned", "cannot wrap a tensor.*forward-mode AD.*kinds=",
    ),
    "record: a sparse output": (
        watched(record), lambda: nn.Sequential(nn.Linear(4, 4), Do(lambda x: x.to_sparse())), (X,),
        r"after layer 1 \(Do\) returned", "cannot wrap a tensor.*sparse.*kinds=",
    ),
    "edit: an old value in what the model returns": (
        edited("a"), returning_what_a_hook_kept, (X,),
        r"output\['first'\] of the model is what layer 'a' returned before the edit", "runs after the hook",
    ),
    "edit: a hook that was there before": (
        edited("0"), lambda: hooked(in_place(), "0", "register_forward_hook"), (X,),
        "was on layer '0' before the edit", "sees the output from before the edit",
    ),
    "edit: a deque": (
        edited("0", part=1), lambda: nn.Sequential(Do(lambda x: deque([x, x])), Do(lambda xs: xs[0])), (X,),
        "layer '0'", "it returned a deque, and edit finds tensors only in tuples",
    ),
    "edit: a mapping proxy": (
        edited("0", part="a"),
        lambda: nn.Sequential(Do(lambda x: MappingProxyType({"a": x * 1})), Do(lambda found: found["a"])), (X,),
        "layer '0', call 1", "cannot rebuild the mappingproxy with the new value. Edit a layer inside",
    ),
    "collect: a layer that raised": (
        collected("bad"), lambda: fails_and_goes_on().eval(), (X,), "layer 'bad' raised an exception",
        "returned nothing",
    ),
    "sweep: a layer that raised": (
        lambda net, args: sweep(net, args, ["bad"], "zero", metric=torch.sum, progress=False), fails_and_goes_on, (X,),
        "layer 'bad' raised an exception", "returned nothing",
    ),
    "picker: a layer that raised": (
        lambda net, args: LayerPicker(net, *args, layer="bad"), fails_and_goes_on, (X,), "layer 'bad' raised",
        "returned nothing",
    ),
    "explain: a loss that is in no tensor": (
        explained(watched(capture, gradients=True, backward=False)),
        lambda: Net(lambda self, x: torch.distributions.Normal(self.a(x), 1.0), a=nn.Linear(4, 4)), (X,),
        "the model returns a Normal", "Capture without gradients=True",
    ),
    **{
        f"{name}: gradients in forward": (
            tool, differentiating, (X,), f"hookscope: {name} runs the model without gradients", way,
        )
        for name, tool, way in (
            ("attention", lambda net, args: attention(net, *args), "Pass the part of the model that attends"),
            ("collect", lambda net, args: collected("a")(net.eval(), args), r"run=lambda.*enable_grad"),
            ("LayerPicker", lambda net, args: LayerPicker(net, *args), r"Use hookscope\.capture"),
        )
    },
    "capture: a list of names": (
        lambda net, args: capture(net, ["0"]), in_place, (X,), r"cannot pick layers by \['0'\]",
        r"capture\(model, \*names\)",
    ),
    "record: a graph that runs backward later": (
        lambda net, args: (seen := watched(record, backward=False)(net, args), net.kept.sum().backward(), seen)[2],
        lambda: Net(lambda self, x: self.__dict__.update(kept=self.a(x)) or self.kept, a=nn.Linear(4, 4)), (GRAD,),
        "A graph built inside the block", r"Call backward\(\) inside",
    ),
    "capture: an in-place layer with a full hook": (
        watched(capture), lambda: hooked(in_place(), "0", "register_full_backward_hook"), (GRAD,),
        "a full backward hook on layer '0'", r"capture\(model, \.\.\., gradients=True\)",
    ),
    # -- layers that are not called, and why
    "capture: a layer that is not called": (
        asked(lambda seen: seen["unused"].output, "unused", "direct"), Inside, (X,), "layer 'unused' was not called",
        "did not reach it",
    ),
    "capture: a list of layers": (
        asked(lambda seen: seen["several"], "several", "direct"), Inside, (X,), "'several' was not called",
        "never calls a ModuleList",
    ),
    "capture: forward called directly": (
        asked(lambda seen: seen["direct"], "direct"), Inside, (X,), "'direct' was not called", r"\.forward\(\.\.\.\)",
    ),
    "capture: out_proj": (
        asked(lambda seen: seen["out_proj"], "out_proj"), lambda: nn.MultiheadAttention(4, 2), (X, X, X),
        "'out_proj' was not called", "never calls it",
    ),
    "capture: layers in a plain list": (
        watched(capture), keeping, (X,), r"layer \(root\) keeps a module in its attribute 'kept'", "not in the model",
    ),
    "capture: a layer made in forward": (
        watched(capture), late, (X,), "layer 0.new: a Linear", "was added to the model inside the block",
    ),
    "capture: compiled before": (
        asked(lambda seen: seen["inner.0"], "inner.0"), compiled_before, (X,), "'inner.0' was not called",
        "compiled earlier",
    ),
    "record: a layer made in forward": (
        watched(record, **FORWARD), late, (X,), r"Layer 0\.new \(Linear\) was added", "logged from then on",
    ),
    "record: a layer that is not in the model": (
        watched(record, **FORWARD), late, (X,), r"Tanh \(in forward of 0\) is not a submodule",
        "Assign it in __init__",
    ),
    "edit: a layer that is not called": (
        edited("unused"), Inside, (X,), "layer 'unused'", "this pass did not reach it",
    ),
    "edit: a list of layers": (edited("several"), Inside, (X,), "layer 'several'", "never calls a ModuleList"),
    "edit: forward called directly": (
        edited("direct"), Inside, (X,), "layer 'direct'", r"ran it without hooks \(through \.forward",
    ),
    "edit: the weight alone": (
        edited("weight_only"), Inside, (X,), "layer 'weight_only'", "through a function that uses its weight",
    ),
    "edit: out_proj": (
        edited("out_proj"), lambda: nn.MultiheadAttention(4, 2), (X, X, X), "layer 'out_proj'",
        "Edit the attention layer itself",
    ),
    "edit: compiled before": (
        edited("inner.0"), compiled_before, (X,), "layer 'inner.0'", "torch.compile compiled it before the block",
    ),
    "edit: a layer that raised": (
        edited("bad"), fails_and_goes_on, (X,), "layer 'bad'", "raised an exception that the model caught",
    ),
    "collect: a layer that is not called": (
        collected("unused"), lambda: Inside().eval(), (X,), "layer 'unused' was not called", "did not reach it",
    ),
    # -- calls, parts and gradients that never came
    "capture: a layer called twice": (
        asked(lambda seen: seen["0"].output), lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), (X,), "called 2 times",
        r"seen\['0'\]\.calls\[0\]\.output",
    ),
    "capture: gradients that were not asked for": (
        asked(lambda seen: seen["0"].grad), in_place, (X,), "did not keep gradients", "gradients=True",
    ),
    "capture: inputs that were not asked for": (
        asked(lambda seen: seen["0"].args), in_place, (X,), "did not keep inputs", "inputs=True",
    ),
    "capture: statistics that were not asked for": (
        asked(lambda seen: seen["0"].stats), in_place, (X,), "kept tensors", "stats=True",
    ),
    "capture: tensors where statistics were asked for": (
        asked(lambda seen: seen["0"].output, stats=True), in_place, (X,), "stats=True keeps only", r"\.stats",
    ),
    "capture: no gradient under no_grad": (
        under(EVAL, asked(lambda seen: seen["0"].grad, gradients=True)), in_place, (X,), "the output of layer '0'",
        "does not require grad",
    ),
    "capture: a gradient that came later": (
        asked(lambda seen: seen["0"].grad, gradients=True, backward=False), in_place, (X,),
        "no gradient has reached layer '0'", r"Call backward\(\) inside",
    ),
    "capture: an output that was overwritten": (
        asked(lambda seen: seen["0"].output, copy=False), in_place, (X,),
        r"the output of layer '0' was overwritten later, by layer 1 \(ReLU\)", r"copy=True",
    ),
    "capture: writes in inference mode": (
        under(torch.inference_mode, watched(capture)), in_place, (X,), "in inference mode", r"\.overwritten",
    ),
    "capture: a layer that raised": (
        asked(lambda seen: seen["bad"].output), fails_and_goes_on, (X,), "layer 'bad' raised an exception",
        "returned nothing",
    ),
    "capture: a sparse output in part": (
        watched(capture, samples=0), lambda: nn.Sequential(Do(lambda x: x.to_sparse())), (X,),
        "layer 0: torch cannot slice or convert a sparse_coo tensor", "all of it is kept unchanged",
    ),
    "capture: samples that are not there": (
        watched(capture, samples=0), lambda: nn.Sequential(Do(lambda x: x[:0])), (X,), "layer 0: samples=0",
        r"selects nothing from a tensor of shape \(0, 4\)",
    ),
    "capture: more than max_bytes": (
        watched(capture, max_bytes=10), in_place, (X,), "reached at call 0", r"dtype=torch\.float16 or stats",
    ),
    "capture: an error in the model": (
        watched(capture), lambda: nn.Sequential(nn.ReLU(), nn.Linear(9, 9)), (X,),
        "2 calls were captured before this error, the last one in 1", "",
    ),
    "edit: a call": (
        edited("0", calls={2, 3}), in_place, (X,), "layer '0' was called once", "so there was no call 2, 3",
    ),
    "edit: a part": (
        edited("0", part=(1, "h")), lambda: nn.Sequential(Do(lambda x: (x, {"h": None}, x)), Do(lambda xs: xs[0])),
        (X,), "layer '0'", r"it returned part=0 \(2, 4\), part=2 \(2, 4\)",
    ),
    "edit: several tensors": (
        edited("0"), lambda: nn.Sequential(nn.LSTM(4, 4)), (X,), "layer '0', call 1", "Choose one: part=0",
    ),
    "edit: no tensor": (
        edited("0"), lambda: nn.Sequential(Do(lambda x: "text")), (X,), "layer '0'", "it returned no tensor, but a str",
    ),
    "edit: a gradient, without backward": (
        edited("0", to="grad", backward=False), in_place, (X,), "layer '0'", r"backward\(\) was not called inside",
    ),
    "edit: a gradient, under no_grad": (
        under(EVAL, edited("0", to="grad")), in_place, (X,), "layer '0'", "does not require grad",
    ),
    "edit: an index that does not fit": (
        edited("0", "set", 0.0, at[:, 9]), in_place, (X,), r"layer '0', call 1: at\[:, 9\]",
        r"does not fit shape \(2, 4\).*select those with calls=",
    ),
    "edit: a value of another shape": (
        edited("0", "set", torch.ones(5)), in_place, (X,), "layer '0', call 1", r"does not broadcast.*shape \(2, 4\)",
    ),
    "edit: a function that returns nothing": unfit("returned None.*Return the new values", "map", lambda x: None),
    "edit: a function that returns no tensor": unfit("the function returned int, not a tensor", "map", lambda t: 3),
    "edit: another shape": unfit(r"changed the shape \(2, 4\) to \(1, 4\)", "map", lambda t: t[:1]),
    "edit: a batch that grows": unfit(r"\(3, 2, 4\)", "map", lambda t: t + torch.ones(3, 1, 1)),
    "edit: a value that grows it": unfit(r"shape \(3, 2, 4\).*\(2, 4\)", "add", torch.ones(3, 2, 4)),
    "edit: a value of another length": unfit(r"\(3,\).*\(4,\)", "set", torch.ones(3), at[0]),
    "edit: another dtype": unfit("float32 to torch.float64", "map", torch.Tensor.double),
    "edit: a complex value": unfit("1j does not fit the dtype torch.float32", "add", 1j),
    "edit: a complex tensor": unfit("complex64, but the tensor has torch.float32", "set", torch.ones(4) * 1j),
    "edit: another device": unfit("from cpu to meta", "map", lambda t: t.to("meta")),
    "edit: a value elsewhere": unfit("on meta.*on cpu", "add", torch.ones(4, device="meta")),
    "edit: an index that selects nothing": unfit("selects nothing from shape", "set", 0, at[:, 9:]),
    "edit: samples that are not there": unfit(r"samples=\[2\] does not fit shape", "set", 0, samples=[2]),
    "edit: a tensor of another run": unfit(r"\(1, 4\) in the other run", "swap", torch.ones(1, 4)),
    "edit: a list of the caller's": (
        edited("0", to="input", part=(0, 0)), lambda: nn.Sequential(Do(lambda xs: xs[0])), ([X],), "layer '0', call 1",
        "Edit the output of the layer that computes the tensor",
    ),
    "edit: a checkpoint that recomputes later": (
        edited("a.0", backward=False),
        lambda: Net(lambda self, x: checkpoint(self.a, x, use_reentrant=False), a=nn.Sequential(nn.Linear(4, 4))), (X,),
        "layer 'a.0' ran in a checkpoint", "runs it again in backward",
    ),
    # -- models of other kinds
    "capture: a compiled model": (
        lambda net, args: capture(torch.compile(net)), in_place, (X,), "the model is compiled", r"set_stance\(",
    ),
    "capture: a compiled layer": (
        lambda net, args: (net[0].compile(), capture(net)), in_place, (X,), "layer '0' is compiled by", "compile",
    ),
    "record: a compiled model": (
        lambda net, args: record(torch.compile(net)), in_place, (X,), "the model is compiled", r"set_stance\(|original",
    ),
    "edit: a compiled model": (
        lambda net, args: edit(torch.compile(net)), in_place, (X,), "the model is compiled", "Edit the model",
    ),
    "profile: a compiled part": (
        lambda net, args: profile(nn.Sequential(torch.compile(net)), *args), in_place, (X,), "layer '0'", "is compiled",
    ),
    "profile: no inputs": (
        lambda net, args: profile(net), in_place, (X,), "profile runs the model", r"profile\(model, input\)",
    ),
    "attention: no inputs": (
        lambda net, args: attention(net), in_place, (X,), "attention runs the model", r"attention\(model, input\)",
    ),
    "profile: TorchScript": (
        lambda net, args: profile(nn.Sequential(torch.jit.trace(net, X)), *args, repeats=1, warmup=0),
        lambda: nn.Linear(4, 4), (X,), "TorchScript modules take no hooks", "the layer around them",
    ),
    "profile: the meta device": (
        lambda net, args: profile(net.to("meta"), *args), in_place, (X,), "the model is on the meta device", "Move it",
    ),
    "profile: an input on the meta device": (
        lambda net, args: profile(net, *args), in_place, (X.to("meta"),), "an input is on the meta device", "Move it",
    ),
    "profile: a hook that steps": (
        lambda net, args: profile(net, *args), stepping, (X,), "parameter '0.weight'", "pass backward=False",
    ),
    "profile: nothing to run backward from": (
        lambda net, args: profile(net.requires_grad_(False), *args, repeats=1, warmup=0), in_place, (X,),
        "backward was not measured", "does not require grad",
    ),
    "profile: a layer made in forward": (
        lambda net, args: profile(net, *args, repeats=1, warmup=0), late, (X,), "layer '0.new'",
        "Create it in __init__",
    ),
    "collect: a model in train()": (
        collected(), lambda: nn.Sequential(nn.Linear(4, 4).eval(), nn.Dropout()).eval().train(), (X,),
        "the model is in train", r"Call model\.eval\(\)",
    ),
    "collect: no sample axis": (
        collected("0"), lambda: nn.Sequential(Do(lambda x: x.mean(0))).eval(), (X,), "'0' has no sample axis",
        "Leave this layer out",
    ),
    "collect: several sample axes": (
        collected("0"), lambda: nn.Sequential(Do(lambda x: x @ x.T)).eval(), (X,), "several axes of '0'",
        "Leave this layer out",
    ),
    "collect: a sparse output": (
        collected("0"), lambda: nn.Sequential(Do(lambda x: x.to_sparse())).eval(), (X,), "'0' is a sparse_coo tensor",
        "Leave it out",
    ),
    "collect: a part": (
        collected("0", part=1), lambda: nn.Sequential(Do(lambda x: (x,))).eval(), (X,), r"layer '0' has no part=\(?1",
        "It returned",
    ),
    "lens: a model without blocks": (
        lambda net, args: Streams(net, args), in_place, (X,), "could not find the blocks of Sequential",
        r"layers='blocks\.\*'",
    ),
    "lens: a layer that is not called": (
        lambda net, args: Streams(net, args, layers="unused"), Inside, (X,), "layer 'unused' was not called",
        "did not reach it",
    ),
    "lens: no stream": (
        lambda net, args: Streams(net, args, layers=["0"]), in_place, (X,), r"layer '0' returned \(2, 4\)",
        r"layers='blocks\.\*'",
    ),
    "lens: more than max_bytes": (
        lambda net, args: Streams(net, args, max_bytes=2000), Reader, (READER_IDS,), "max_bytes=2,000",
        "Pass a shorter text",
    ),
    "graph: a tensor that is not in it": (
        lambda net, args: graph(net(*args), names={"other": GRAD}), in_place, (X,), "not in this graph: other",
        "cannot be listed",
    ),
    "graph: hooks of modules": (
        lambda net, args: graph(net(*args)), lambda: hooked(nn.Linear(4, 4), "", "register_full_backward_hook"),
        (GRAD,), "BackwardHookFunctionBackward", "added by full backward hooks",
    ),
    "graph: nothing that requires grad": (
        under(EVAL, lambda net, args: graph(net(*args))), in_place, (X,), r"the tensor of shape \(2, 4\)",
        r"requires_grad_\(\)",
    ),
    "census: a forward that was replaced": (
        lambda net, args: census(net), lambda: Net(lambda self, x: x, a=replaced(nn.Linear(4, 4))), (X,),
        r"forward of layer a \(Linear\) was replaced", "which is not a hook",
    ),
    "census: hooks that are still there": (
        lambda net, args: census(net).assert_none(), lambda: hooked(in_place(), "0", "register_forward_hook"), (X,),
        r"forward hook .* on 0", r"remove_all\(\)",
    ),
    "compare: nothing that requires grad": (
        lambda net, args: compare_backward_hooks(net, *args), nn.ReLU, (X,), "output of ReLU", r"requires_grad_\(\)",
    ),
    "compare: a string in front": (
        lambda net, args: compare_backward_hooks(net, *args), lambda: Do(lambda x: ("a", x)), (GRAD,), "output of Do",
        "Return the tensors first",
    ),
    # -- what plain lines cannot say
    **{
        f"explain: {name}=": (
            lambda net, args, options={name: value}: explain(capture(net, **options)), in_place, (X,),
            f"cannot write code for {name}=", "Capture without it, and explain that",
        )
        for name, value in (
            ("stats", True), ("copy", False), ("samples", 0), ("dtype", torch.float64), ("device", "cpu"),
            ("stop", True),
        )
    },
    "explain: a number": (
        lambda net, args: explain(3), in_place, (X,), "a capture or an edit, not of a int",
        r"Pass what hookscope\.capture",
    ),
    "explain: a model": (
        lambda net, args: explain(net), in_place, (X,), "a capture or an edit, not of a Seq",
        r"Pass what hookscope\.capture",
    ),
    "explain: a call that raised": (
        explained_error, lambda: nn.Sequential(nn.ReLU(), nn.Linear(9, 9)), (X,),
        "cannot write code for this capture: layer '1' raised an exception", "another pass",
    ),
    "explain: a container in itself": (
        explained(watched(capture, "", backward=False)),
        lambda: Do(lambda x: (value := {"x": x}).update(own=value) or value), (X,),
        r"cannot write code for call \(root\)", "because its inputs or outputs contain a dict",
    ),
    "explain: positions": (
        explained(edited("1", "set", 0, positions=1)), lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)),
        (torch.tensor([[1, 2, 3]]),), r"cannot write code for positions= \(edit 1\)",
        r"Use an index, such as at\[:, 3\]",
    ),
    "explain: an edit that never ran": (
        lambda net, args: (e := edit(net), e.set("1", 0), explain(e)), in_place, (X,), "an edit that ran",
        "Run the model inside its with block first",
    ),
    "explain: rows and an index": unexplained(
        r"samples= or heads= with at\[\.\.\.\] \(edit 1\)", lambda e: e.set("one", 0, at[0], samples=1)
    ),
    "explain: heads": unexplained(
        "this edit of layer 'attn': it changes the attention, or", lambda e: e.set("attn", 0, heads=1),
        "Edit a whole"
    ),
    "explain: an object": unexplained("this edit of layer 'held'", lambda e: e.set("held", 0, part="logits")),
    "explain: deep inside": unexplained("this edit of layer 'deep'", lambda e: e.set("deep", 0, part=(0, 1))),
    "explain: counted from the end": unexplained("this edit of layer 'attn'", lambda e: e.set("attn", 0, part=-2)),
    "explain: a gradient of a part": unexplained(
        "this edit of layer 'attn'", lambda e: e.set("attn", 0, to="grad", part=0)
    ),
}  # fmt: skip


def said(tool: Tool, net: nn.Module, args: tuple[Any, ...]) -> str:
    """Run a tool, and put together its error with its notes, or the warnings and notes of what it returned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seen = tool(net, args)
        except Exception as error:
            return "; ".join([str(error), *getattr(error, "__notes__", [])])
    warned = [str(each.message) for each in caught]
    return "; ".join([*warned, *getattr(seen, "notes", ()), seen if isinstance(seen, str) else ""])


@pytest.mark.parametrize("row", ROWS)
def test_what_was_not_done_names_the_layer_and_what_to_type(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, make, args, where, way = ROWS[row]
    monkeypatch.chdir(tmp_path)
    net = make()
    before = repr(census(net))
    text = said(tool, net, args)
    assert re.search(where, text), text
    assert re.search(way, text), text
    assert repr(census(net)) == before
    assert not list(tmp_path.glob("*/*.safetensors"))
