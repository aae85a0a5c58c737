"""What passes between a widget and its page: in turn, numbered, and in the end with what holds."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import traitlets

from hookscope import samples
from hookscope_course.figures import SilenceChannel
from hookscope_course.figures.gradient_playground.figure import GradientPlayground


@pytest.fixture
def figure() -> SilenceChannel:
    return SilenceChannel(samples.digit_cnn(), samples.digit(5))


def sent(widget: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """List the messages to the page from now on."""
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "_send", lambda message, buffers=None: messages.append(message))
    return messages


def test_the_number_of_what_was_asked_comes_last(figure: SilenceChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = sent(figure, monkeypatch)
    figure.set_state({"factor": 0.5, "_request": 7})
    assert "code" in {name for message in messages[:-2] for name in message["state"]}
    assert messages[-2] == {
        "method": "echo_update", "state": {"factor": 0.5, "_request": 7}, "buffer_paths": [],
    }  # fmt: skip
    assert messages[-1]["state"] == {"_response": 7}


def test_what_is_refused_is_put_back_on_the_page(figure: SilenceChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = sent(figure, monkeypatch)
    with pytest.raises(traitlets.TraitError, match="there is no channel 99"):
        figure.set_state({"channel": 99, "_request": 1})
    assert messages[-1]["state"]["channel"] == figure.channel == 0


def test_what_is_made_another_is_an_echo_which_the_page_drops_if_it_has_said_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    playing = GradientPlayground(choices={"d": "hook"})
    messages = sent(playing, monkeypatch)
    playing.set_state({"choices": {"d": "nothing", "c": "hook"}, "_request": 1})
    said = [(message["method"], message["state"]["choices"]) for message in messages if "choices" in message["state"]]
    assert said == [("echo_update", {"c": "hook"})]


def test_the_page_waits_for_its_turn_while_a_cell_sets_several_traits(figure: SilenceChannel) -> None:
    begun = threading.Event()

    def page() -> None:
        begun.set()
        figure.set_state({"factor": 0.5, "_request": 1})

    thread = threading.Thread(target=page)
    with figure.hold_sync():
        thread.start()
        begun.wait()
        thread.join(0.5)
        assert figure.factor == 1
        figure.channel = 2
    thread.join()
    assert (figure.factor, figure.channel) == (0.5, 2)
