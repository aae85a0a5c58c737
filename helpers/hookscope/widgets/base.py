"""The base class of all widgets: script and style, the image shown without a kernel, errors as sentences."""

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

from hookscope.pictures import Picture, Rows, Table
from hookscope.pictures.colors import CSS

__all__ = ["HookWidget", "assets", "show_errors"]

_FOLDER = Path(__file__).parent
_P = ParamSpec("_P")
_W = TypeVar("_W", bound="HookWidget")
# The kernel handles messages of the page in one thread and runs cells in another. ipywidgets keeps one record per
# widget of what to send, so two threads lose each other's changes. The lock is one for all widgets, because they can
# share a model.
_LOCK = threading.RLock()


def assets(*stems: str | Path) -> tuple[str, str]:
    """Return ``_esm`` and ``_css`` of a widget: the common part, then the ``.js`` and ``.css`` of each stem.

    anywidget takes one JavaScript text per widget, so each text starts with the common functions. The style starts
    with the colors.

    Args:
        *stems: paths without suffix. Relative paths start in the folder of this module.

    """
    files = [_FOLDER / stem for stem in ("common", *stems)]
    esm, css = (
        "\n".join(each.read_text(encoding="utf-8") for file in files if (each := file.with_suffix(end)).exists())
        for end in (".js", ".css")
    )
    return esm, CSS + css


def show_errors(method: Callable[Concatenate[_W, _P], None]) -> Callable[Concatenate[_W, _P], None]:
    """Decorate a callback so that the widget shows an exception as a sentence and keeps working."""

    @functools.wraps(method)
    def guarded(self: _W, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        with self.catch_errors():
            method(self, *args, **kwargs)

    return guarded


class HookWidget(anywidget.AnyWidget):
    """A widget that also works as an image with alt text and a table, without a kernel.

    A subclass sets ``_esm`` and ``_css`` (see `assets`), updates `png` and `alt`, and overrides `summary` and
    `numbers`. If a notebook is not trusted, Jupyter shows the image and the table instead of the widget. If it is
    trusted, but has no kernel yet, JupyterLab draws the saved state. It does so only with the setting "Save Jupyter
    widget state in notebooks", which lessons/jupyter/ turns on.

    If a cell runs again, the widgets of its previous run are closed. ipywidgets itself would keep them forever.

    Attributes:
        problem: the error that the page shows, as a sentence; empty if there is none.
        png: the image as PNG bytes.
        alt: the alt text of the image.

    """

    # The page counts its requests in `_request`, and the kernel copies the count to `_response` when it has answered.
    # So the page can tell whether it shows the latest answer. It sends traits only: a custom message would overtake
    # the traits that ipywidgets holds back while the kernel is busy.

    problem = traitlets.Unicode("").tag(sync=True)
    png = traitlets.Bytes(b"").tag(sync=True)
    alt = traitlets.Unicode("").tag(sync=True)
    _request = traitlets.Int(0).tag(sync=True)
    _response = traitlets.Int(0).tag(sync=True)
    _received: frozenset[str] = frozenset()  # traits of the message that is being handled

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        _close_previous(self)

    def close(self) -> None:
        """Remove the widget from the page, and close its layout, which ipywidgets leaves open."""
        if self.comm is not None:
            self.layout.close()
        super().close()

    def set_state(self, sync_data: Mapping[str, Any]) -> None:
        """Set traits from the page, and answer with their values after validation.

        ipywidgets echoes the values before it validates them, so the page would keep a value that was refused. It also
        sends a corrected value as an update, which overwrites newer input on the page. This method sends the valid
        values as an echo instead. The page ignores an echo if it has newer input.
        """
        with _LOCK:
            names = [name for name in sync_data if name in self.keys]
            self._received = frozenset(names)
            try:
                with self.hold_trait_notifications():
                    for name in names:
                        convert = self.trait_metadata(name, "from_json", self._trait_from_json)
                        self.set_trait(name, convert(sync_data[name], self))
            finally:
                self._received = frozenset()
                self._send({"method": "echo_update", "state": self.get_state(names), "buffer_paths": []})
                self._response = self._request

    def notify_change(self, change: Any) -> None:
        """Notify the page and the observers, one thread at a time."""
        with _LOCK:
            super().notify_change(change)

    @contextmanager
    def hold_sync(self) -> Iterator[None]:
        """Send all changes of the block together, at its end."""
        with _LOCK, super().hold_sync():
            yield

    def _should_send_property(self, key: str, value: Any) -> bool:
        return key not in self._received and bool(super()._should_send_property(key, value))

    def summary(self) -> str:
        """Describe the widget in a few lines. Leave out memory addresses: tests compare the outputs of notebooks."""
        return self.alt

    def numbers(self) -> Rows:
        """List the numbers in the image, one dict per row, for readers who cannot see it."""
        return ()

    def __repr__(self) -> str:
        return self.summary()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = {**data, "text/plain": repr(self)}
        if png := self.png:  # some draw it whenever it is asked for
            # JupyterLab ignores alt text of image/png, so the image is also sent as HTML.
            caption = self.summary().partition("\n")[0]
            picture = Picture(png, self.alt, caption, self.numbers())
            data |= picture._repr_mimebundle_() | {"text/plain": repr(self)}
        elif rows := self.numbers():  # shown by a page without a kernel
            data["text/html"] = Table(rows, self.alt).to_html()
        return data, metadata

    @contextmanager
    def catch_errors(self) -> Iterator[None]:
        """Store an exception of the block in `problem`, as a sentence."""
        try:
            yield
        except Exception as error:
            lines = str(error).strip().splitlines()
            self.problem = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        else:
            self.problem = ""


_widgets: dict[tuple[str, str], list[tuple[int, weakref.ref[HookWidget]]]] = {}


def _close_previous(widget: HookWidget) -> None:
    """Close the widgets of the previous run of this cell."""
    cell, run = _get_cell()
    if cell is None:
        return
    widgets = _widgets.setdefault(
        (cell, type(widget).__qualname__), []
    )  # not the class: anywidget makes one per widget
    for earlier, reference in widgets:
        if earlier != run and (other := reference()) is not None:
            other.close()
    widgets[:] = [(earlier, reference) for earlier, reference in widgets if earlier == run]
    widgets.append((run, weakref.ref(widget)))


def _get_cell() -> tuple[str | None, int]:
    """Return the ID of the running cell, or None if the frontend does not send it, and the execution count."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None, 0
    shell = get_ipython()
    parent: Any = getattr(shell, "parent_header", None) or {}
    return (parent.get("metadata") or {}).get("cellId"), getattr(shell, "execution_count", 0)
