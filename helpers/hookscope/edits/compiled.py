"""Notice passes that go through code which torch.compile made before the block: no hook runs in it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from threading import get_ident
from types import CodeType
from typing import Any, Protocol

from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from hookscope.layers import Modules, take_off

__all__ = ["CompiledBefore", "compiled_around", "was_used"]


def was_used() -> bool:
    """Whether `torch.compile` has been asked for anything here, or has compiled anything; quick."""
    if (frames := sys.modules.get("torch._dynamo.eval_frame")) is None:
        return False
    for asked in getattr(frames, "cached_backends", {"": ""}).values():
        if asked is not None:  # as it is for functions that are not to be compiled
            return True
    # torch.compiler.reset() forgets who asked, but what is there compiles again.
    seen = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    return seen is None or bool(seen.seen)


def compiled_around(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """List what `torch.compile` has wrapped around one of these modules.

    Not seen is a compiled function that calls one. The wrapper knows the module, and not the other way round, so all
    of them are looked for, which takes some hundredths of a second.

    Example:
        >>> import torch
        >>> net = nn.Linear(2, 2)
        >>> compiled = torch.compile(net)
        >>> compiled_around([net]) == [compiled]
        True

    """
    if "torch._dynamo" not in sys.modules:
        return []
    from torch._dynamo import OptimizedModule

    around = set(modules)
    wrappers = (each for each in gc.get_referrers(OptimizedModule) if type(each) is OptimizedModule)
    return [wrapper for wrapper in wrappers if wrapper._orig_mod in around]


class Counted(Protocol):
    """A layer whose calls are counted."""

    name: str
    module: nn.Module
    seen: int


class CompiledBefore:
    """Hooks on what is wrapped around parts of a model, to tell whether a call of it has reached the hooks inside.

    Attributes:
        missed: how many calls have reached none.

    """

    def __init__(self) -> None:
        self.missed = 0
        self._wrappers: dict[nn.Module, list[nn.Module]] = {}  # by module: what is wrapped around it
        self._counted: dict[nn.Module, dict[Counted, None]] = {}  # by wrapper: layers inside
        self._begun: dict[tuple[nn.Module, int], int] = {}  # by wrapper and thread

    def ask(self, modules: Modules, layers: Iterable[Counted]) -> None:
        """Watch what is wrapped around layers and around the modules that they are in.

        The hooks of a module that is wrapped itself run outside of its code, unless its `forward` is torch's own.
        """
        for layer in layers:
            around = dict.fromkeys([layer.module, *modules.down_to(layer.name)])
            new = [module for module in around if module not in self._wrappers]
            found = compiled_around(new) if _compiled_for(new) else []
            self._wrappers.update({module: [each for each in found if each._orig_mod is module] for module in new})
            for wrapper in (wrapper for module in around for wrapper in self._wrappers[module]):
                if wrapper not in self._counted:
                    self._counted[wrapper] = {}
                    wrapper.register_forward_pre_hook(self.before)
                    wrapper.register_forward_hook(self.after)
                self._counted[wrapper][layer] = None

    def take_off(self) -> None:
        """Take the hooks off; as often as you like."""
        for wrapper in self._counted:
            take_off(self, wrapper)

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what has been seen until now."""
        self._begun[module, get_ident()] = self._calls(module)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Compare."""
        self.missed += self._begun.get((module, get_ident())) == self._calls(module)

    def _calls(self, wrapper: nn.Module) -> int:
        return sum(layer.seen for layer in self._counted[wrapper])

    def reasons(self) -> list[str]:
        """Say what was missed, if something was."""
        if not self.missed:
            return []
        passes = "1 pass was" if self.missed == 1 else f"{self.missed} passes were"
        return [
            f"{passes} not edited: the model was compiled before the block, and code that is there does not notice new "
            'hooks; run it under torch.compiler.set_stance("force_eager")'
        ]

    before.__qualname__ = after.__qualname__ = "hookscope.edit"  # what a census shows


def _compiled_for(modules: Iterable[nn.Module]) -> bool:
    """Whether a forward of the classes of some modules was compiled, for these modules or others; quick."""
    forwards: set[Any] = {getattr(type(module).forward, "__code__", None) for module in modules} - {None}
    return bool(forwards) and any(_debug_get_cache_entry_list(code) for code in (*forwards, *_around_torchs_own()))


def _around_torchs_own() -> list[CodeType]:
    """List the code that torch compiles in the place of a forward of its own, such as that of `nn.Sequential`."""
    around = getattr(sys.modules.get("torch._dynamo.external_utils"), "wrap_inline", None)
    return [each for each in around.__code__.co_consts if isinstance(each, CodeType)] if around else []
