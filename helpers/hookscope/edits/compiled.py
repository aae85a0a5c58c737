"""Notice passes that go through code which torch.compile made before the block: no hook runs in it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from types import CodeType
from typing import Any
from weakref import WeakSet, ref

from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from hookscope.layers import take_off

__all__ = ["CompiledBefore", "compiled_around"]


def compiled_around(modules: Iterable[nn.Module], anew: bool = True) -> list[nn.Module]:
    """List what `torch.compile` has wrapped around one of these modules.

    Not seen is a compiled function that calls one. The wrapper knows the module, and not the other way round: to look
    for all of them takes some hundredths of a second.

    Args:
        modules: the modules.
        anew: look for them, and do not take those that were found last.

    """
    global _wrappers
    if "torch._dynamo" not in sys.modules:
        return []
    if anew:
        from torch._dynamo import OptimizedModule

        _wrappers = WeakSet(each for each in gc.get_referrers(OptimizedModule) if type(each) is OptimizedModule)
    around = set(modules)
    _looked_around.update(around)
    return [each for each in _wrappers if each._orig_mod in around]


_wrappers: WeakSet[Any] = WeakSet()
_looked_around: WeakSet[nn.Module] = WeakSet()


class CompiledBefore:
    """Hooks on what is wrapped around parts of a model, to tell whether a call of it has reached the hooks inside.

    Attributes:
        missed: how many calls have reached none.

    """

    def __init__(self) -> None:
        self.missed = 0
        self._wrappers: dict[nn.Module, list[nn.Module]] = {}  # by module: what is wrapped around it
        self._seen: dict[nn.Module, list[Callable[[], int]]] = {}  # by wrapper: what counts calls of layers inside
        self._begun: dict[tuple[nn.Module, int], int] = {}  # by wrapper and thread

    def ask(self, around: Sequence[nn.Module], seen: Callable[[], int]) -> None:
        """Watch what is wrapped around these modules, a layer and those that it is in; `seen` counts its calls.

        The hooks of a module that is wrapped itself run outside of its code, unless its class is torch's own.
        """
        if "torch._dynamo" not in sys.modules:
            return
        new = [module for module in around if module not in self._wrappers]
        made = _compiled_for(new)
        found = compiled_around(new, anew=not (_all_known(made) and _looked_around.issuperset(new))) if made else []
        self._wrappers.update({module: [each for each in found if each._orig_mod is module] for module in new})
        for wrapper in (wrapper for module in around for wrapper in self._wrappers[module]):
            if wrapper not in self._seen:
                self._seen[wrapper] = []
                wrapper.register_forward_pre_hook(self.before)
                wrapper.register_forward_hook(self.after)
            self._seen[wrapper].append(seen)

    def take_off(self) -> None:
        """Take the hooks off; as often as you like."""
        for wrapper in self._seen:
            take_off(self, wrapper)

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what has been seen until now."""
        self._begun[module, get_ident()] = sum(seen() for seen in self._seen[module])

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Compare."""
        self.missed += self._begun.get((module, get_ident())) == sum(seen() for seen in self._seen[module])

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


def _compiled_for(modules: Iterable[nn.Module]) -> list[CodeType]:
    """List what was compiled of the forwards of some modules' classes, for these modules or others; quick."""
    forwards: set[Any] = {getattr(type(module).forward, "__code__", None) for module in modules} - {None}
    if not forwards:
        return []
    return [entry.code for code in (*forwards, *_around_torchs_own()) for entry in _debug_get_cache_entry_list(code)]


def _all_known(made: Iterable[CodeType]) -> bool:
    """Whether all of what was compiled was there when this was asked before; else nobody has looked around it yet."""
    new = [code for code in made if (known := _known.get(id(code))) is None or known() is not code]
    _known.update({id(code): ref(code) for code in new})
    return not new


_known: dict[int, ref[CodeType]] = {}


def _around_torchs_own() -> list[CodeType]:
    """List the code that torch compiles in the place of a forward of its own, such as that of `nn.Sequential`."""
    around = getattr(sys.modules.get("torch._dynamo.external_utils"), "wrap_inline", None)
    return [each for each in around.__code__.co_consts if isinstance(each, CodeType)] if around else []
