"""The tools of the matrix: those that are a block around a pass, and those that run a model themselves."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope import (
    attention,
    capture,
    census,
    collect,
    compare_backward_hooks,
    diagnose,
    edit,
    graph,
    profile,
    record,
)
from hookscope.censuses.census import removing_new_hooks
from hookscope.interp.lenses import Streams
from hookscope.layers import find_layers, tree
from tests.shared.awkward_models import tensors_in
from tests.shared.recording_helpers import list_hooks
from tests.shared.sweep_helpers import sweep

Block = Callable[[nn.Module], AbstractContextManager[Any]]
Run = Callable[[nn.Module, Any, Any], Any]


def record_everything(model: nn.Module) -> Any:
    """Record all that a recording can log."""
    return record(model, parameters=True, values=True)


BLOCKS: dict[str, Block] = {
    "capture": partial(capture, inputs=True, gradients=True),
    "capture, references": partial(capture, copy=False, inputs=True, gradients=True),
    "capture, statistics": partial(capture, stats=True, gradients=True),
    "record": record_everything,
    "record, forward": partial(record, kinds=("forward_pre", "forward")),
    "edit": edit,
    "census": removing_new_hooks,
}


def look_at_graphs(model: nn.Module, args: Any, kwargs: Any) -> None:
    """Read the graph of everything that a copy returns: nothing is added to the tensors."""
    with torch.random.fork_rng(devices=[]):
        output = copy.deepcopy(model)(*copy.deepcopy(args), **kwargs)
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            before = list_hooks(model), tensor._backward_hooks, tensor.retains_grad, tensor._version
            graph(tensor, model=model)
            assert (list_hooks(model), tensor._backward_hooks, tensor.retains_grad, tensor._version) == before


def collect_twice(model: nn.Module, args: Any, kwargs: Any) -> None:
    """Collect two batches into a folder that goes."""
    with tempfile.TemporaryDirectory() as folder:
        collect(model, [args[0], args[0]], to=folder, progress=False)


def sweep_some(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Put zeros in the place of what each of two layers returns."""
    layers = [name for name, module in model.named_modules() if not list(module.children())][:2]
    return sweep(model, args, layers, "zero", metric=lambda output: tensors_in(output)[0].sum(), progress=False)


RUNS: dict[str, Run] = {
    "census": lambda model, args, kwargs: census(model).table(),
    "layers": lambda model, args, kwargs: (find_layers(model, lambda name, module: True), tree(model)),
    "compare": lambda model, args, kwargs: compare_backward_hooks(model, *args, kwargs=kwargs),
    "diagnose": lambda model, args, kwargs: diagnose(model, "", *args, kwargs=kwargs),
    "graph": look_at_graphs,
    "profile": lambda model, args, kwargs: profile(model, *args, kwargs=kwargs, repeats=1, warmup=1),
    "lens": lambda model, args, kwargs: Streams(model, args, kwargs),
    "attention": lambda model, args, kwargs: attention(model, *args, kwargs=kwargs),
    "sweep": sweep_some,
    "collect": collect_twice,
}
