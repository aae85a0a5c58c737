"""What all widgets share: their script and style, what they are before anything runs, what they say about errors."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import anywidget
import traitlets

from hookscope.pictures import Picture, Rows

__all__ = ["HookWidget", "assets", "show_errors"]

_FOLDER = Path(__file__).parent
_P = ParamSpec("_P")
_W = TypeVar("_W", bound="HookWidget")
# JupyterLab has a kernel answer widgets in one thread while cells run in another, and ipywidgets' own bookkeeping
# (hold_sync, what the page just said) is for one: what one thread wants sent, the other forgets. One lock for all
# widgets, for they may share a model, and one may set another.
_LOCK = threading.RLock()


def assets(*stems: str | Path) -> tuple[str, str]:
    """Return ``_esm`` and ``_css`` of a widget: what all share, then the ``.js`` and ``.css`` of each stem.

    JavaScript modules of anywidget are one text each; so the common functions stand in front of every one.

    Args:
        *stems: paths of files without their ending; a relative one is in the folder of this module.

    """
    files = [_FOLDER / stem for stem in ("common", *stems)]
    esm, css = (
        "\n".join(each.read_text(encoding="utf-8") for file in files if (each := file.with_suffix(end)).exists())
        for end in (".js", ".css")
    )
    return esm, css


def show_errors(method: Callable[Concatenate[_W, _P], None]) -> Callable[Concatenate[_W, _P], None]:
    """Turn what a callback of a widget raises into a sentence in the widget; it stays as it was and goes on."""

    @functools.wraps(method)
    def guarded(self: _W, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        with self.catch_errors():
            method(self, *args, **kwargs)

    return guarded


class HookWidget(anywidget.AnyWidget):
    """A widget that can be read before it runs.

    A subclass sets ``_esm`` and ``_css`` (see `assets`), keeps `png` and `alt` up to date, and says in `summary` what
    is to be seen and in `numbers` with which numbers. In a notebook that is not trusted, the picture and the numbers
    stand in its place.

    In a trusted notebook that is opened with a new kernel, JupyterLab draws the widget as it was, if its setting "Save
    Jupyter widget state in notebooks" is on, which lessons/jupyter/ does; the widget says that it must be run first.
    With the setting off, JupyterLab shows "Error displaying widget: model not found" until the cell is run.

    A cell that is run again closes the widgets it made before, with their comms: ipywidgets itself keeps every widget
    for ever.

    The page numbers what it says, in `_request`; `_response` follows here once all is done and sent. So the page knows,
    and announces, whether it shows the answer to what was asked last. It says everything as traits, never as messages
    of its own: those would overtake the traits that ipywidgets holds back while the kernel is busy.

    Attributes:
        problem: what went wrong, a sentence for the learner; empty if nothing did.
        png: the bytes of the picture that is shown.
        alt: what that picture shows, in words.

    """

    problem = traitlets.Unicode("").tag(sync=True)
    png = traitlets.Bytes(b"").tag(sync=True)
    alt = traitlets.Unicode("").tag(sync=True)
    _request = traitlets.Int(0).tag(sync=True)
    _response = traitlets.Int(0).tag(sync=True)
    _received: frozenset[str] = frozenset()  # what the page is just saying

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        _close_previous(self)

    def close(self) -> None:
        """Take the widget off the page, with its comm; ipywidgets would leave its layout behind."""
        if self.comm is not None:
            self.layout.close()
        super().close()

    def set_state(self, sync_data: Mapping[str, Any]) -> None:
        """Take what the page says, and answer with what holds now.

        ipywidgets echoes what was said before it is tried. So the page would go on with what was refused here or made
        another; and where it is another, ipywidgets sends it as news, which on the page replaces what was said since.
        An echo does not: the page drops it if it has said more.
        """
        with _LOCK:
            said = [name for name in sync_data if name in self.keys]
            self._received = frozenset(said)
            try:
                with self.hold_trait_notifications():
                    for name in said:
                        read = self.trait_metadata(name, "from_json", self._trait_from_json)
                        self.set_trait(name, read(sync_data[name], self))
            finally:
                self._received = frozenset()
                self._send({"method": "echo_update", "state": self.get_state(said), "buffer_paths": []})
                self._response = self._request

    def notify_change(self, change: Any) -> None:
        """Tell the page and who observes, one thread after the other."""
        with _LOCK:
            super().notify_change(change)

    @contextmanager
    def hold_sync(self) -> Iterator[None]:
        """Send what changes inside the block at its end, all at once."""
        with _LOCK, super().hold_sync():
            yield

    def _should_send_property(self, key: str, value: Any) -> bool:
        return key not in self._received and bool(super()._should_send_property(key, value))

    def summary(self) -> str:
        """Say in a line or a few what the widget shows; without addresses, since notebooks are compared."""
        return self.alt

    def numbers(self) -> Rows:
        """List the numbers on the picture, for who cannot see it or has not run it yet."""
        return ()

    def __repr__(self) -> str:
        return self.summary()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = {**data, "text/plain": repr(self)}
        if self.png:
            # JupyterLab reads no alternative text for image/png; in HTML it does.
            caption = self.summary().partition("\n")[0]
            picture = Picture(self.png, self.alt, caption, self.numbers())
            data |= picture._repr_mimebundle_() | {"text/plain": repr(self)}
        return data, metadata

    @contextmanager
    def catch_errors(self) -> Iterator[None]:
        """Put what is raised inside the block into `problem`, as a sentence."""
        try:
            yield
        except Exception as error:
            said = str(error).strip().splitlines()
            self.problem = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        else:
            self.problem = ""


_widgets: dict[tuple[str, str], list[tuple[int, weakref.ref[HookWidget]]]] = {}


def _close_previous(widget: HookWidget) -> None:
    """Close the widgets that an earlier run of the same cell has made."""
    cell, run = _get_cell()
    if cell is None:
        return
    here = _widgets.setdefault((cell, type(widget).__qualname__), [])  # anywidget makes a class for each widget
    for earlier, reference in here:
        if earlier != run and (other := reference()) is not None:
            other.close()
    here[:] = [(earlier, reference) for earlier, reference in here if earlier == run]
    here.append((run, weakref.ref(widget)))


def _get_cell() -> tuple[str | None, int]:
    """Return the id of the cell that is running, if the frontend tells it, and the number of its run."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None, 0
    shell = get_ipython()
    parent: Any = getattr(shell, "parent_header", None) or {}
    return (parent.get("metadata") or {}).get("cellId"), getattr(shell, "execution_count", 0)
