"""The order quiz: it keeps its secret until it is asked, counts fairly, and gives reasons that are true."""

from __future__ import annotations

import json

import pytest
import torch
import traitlets
from torch import nn

from hookscope.recordings.record import record
from hookscope_course.widgets.order_reasons import explain_order
from hookscope_course.widgets.quiz import OrderQuiz
from tests.shared.recorded import nested, recorded

BACKWARD = ["full_backward_pre", "full_backward"]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.head = nn.Sequential(nn.Linear(4, 3), nn.ReLU())

    def forward(self, x):
        return self.head(self.fc(self.fc(x)))


def reasons(recording):
    """What is said of every pair of events, by their labels."""
    events = recording.events
    return {
        (first.label, second.label): _reason(first, second, events, recording.notes)
        for place, first in enumerate(events)
        for second in events[place + 1 :]
    }


def _reason(first, second, events, notes):
    said, plain = explain_order(first, second, events, notes), f"{first.label} comes before {second.label}"
    assert said.startswith(plain)
    return "" if said == f"{plain} in this run." else said.removeprefix(f"{plain}: ")


# The secret.


def test_before_it_is_revealed_the_order_is_nowhere_to_be_read():
    recording = recorded()
    quiz = OrderQuiz(recording)
    order = recording.order()
    assert sorted(quiz._cards) == sorted(order)
    assert quiz._cards != order
    state = json.dumps(
        {key: str(value) for key, value in quiz.get_state().items() if key not in ("_esm", "_css", "png")}
    )
    shown = [state, quiz.alt, repr(quiz), str(quiz._repr_mimebundle_())]
    for text in shown:
        places = [text.find(name) for name in order if order.count(name) == 1]
        assert places != sorted(places)
    assert quiz._result == {}
    for name in ("order", "score", "explanation"):
        with pytest.raises(RuntimeError, match=rf"the {name} is hidden until you have guessed. Then call reveal\(\)"):
            getattr(quiz, name)


def test_what_is_sent_before_it_is_revealed_does_not_depend_on_the_order():
    """Two recordings of the same names in another order look the same."""
    model, x = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)}), torch.ones(1, 4)
    states = []
    for names in ("abc", "cab"):
        with record(model, kinds="forward") as recording:
            for name in names:
                model[name](x)
        state = OrderQuiz(recording).get_state()
        state["_cards"] = sorted(state["_cards"])
        states.append({key: state[key] for key in ("_cards", "_result", "answer", "revealed", "problem")})
    assert states[0] == states[1]


@pytest.mark.parametrize("seed", range(20))
def test_the_seed_shuffles_and_never_gives_the_answer_away(seed):
    recording = recorded(nn.Sequential(nn.ReLU(), nn.Tanh()), kinds="full_backward")
    quiz = OrderQuiz(recording, seed=seed)
    assert quiz._cards == OrderQuiz(recording, seed=seed)._cards
    assert quiz._cards != recording.order()


def test_another_seed_shuffles_otherwise():
    recording = recorded()
    assert len({tuple(OrderQuiz(recording, seed=seed)._cards) for seed in range(5)}) == 5


# Answers.


def test_the_right_order_is_right():
    recording = recorded()
    quiz = OrderQuiz(recording)
    quiz.answer = recording.order()
    table = quiz.reveal()
    assert (quiz.score, quiz.order, quiz.explanation) == (20, recording.order(), "")
    assert {row["mark"] for row in table.rows} == {"same"}
    assert table.caption == "All 20 right: this is torch's own order."
    assert quiz._result["verdict"] == table.caption
    assert quiz.png == recording.picture().png
    assert repr(quiz).startswith("OrderQuiz: All 20 right")


def test_the_score_counts_up_to_the_first_difference_only():
    recording = recorded(kinds=["forward_pre", "forward"])
    quiz = OrderQuiz(recording)
    order = recording.order()
    quiz.answer = [*order[:3], order[4], order[3], *order[5:]]
    rows = quiz.reveal().rows
    assert quiz.score == 3
    assert [row["mark"] for row in rows] == ["same"] * 3 + ["first difference", "differs"] + ["same"] * 5
    assert [row["you"] for row in rows] == quiz.answer
    assert [row["torch"] for row in rows] == order
    assert quiz._result["verdict"] == (
        "The first 3 of 10 are right. At position 4 you said forward_pre 0.1, but torch fired forward 0.0."
    )
    assert quiz.explanation == ("forward 0.0 comes before forward_pre 0.1: '0.0' had returned when '0.1' began.")


def test_an_answer_can_stop_early_or_be_empty():
    recording = recorded(kinds=["forward_pre", "forward"])
    quiz = OrderQuiz(recording)
    quiz.answer = recording.order()[:2]
    assert quiz.reveal().caption == "2 of 10 right, then you stopped. At position 3 torch fired forward_pre 0.0."
    assert [row["mark"] for row in quiz.reveal().rows] == ["same"] * 2 + ["missing"] * 8
    quiz.start_over()
    assert quiz.reveal().caption == "You placed none of 10. At position 1 torch fired forward_pre (root)."
    assert (quiz.score, quiz.explanation) == (0, "")


def test_events_of_one_name_count_as_equal():
    layer, x = nn.Linear(4, 4), torch.ones(1, 4, requires_grad=True)
    with record(layer, kinds=BACKWARD) as recording:
        loss = layer(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert recording.order() == ["full_backward_pre (root)", "full_backward (root)"] * 2
    quiz = OrderQuiz(recording)
    quiz.answer = recording.order()
    quiz.reveal()
    assert quiz.score == 4


def test_starting_over_hides_everything_again():
    quiz = OrderQuiz(recorded())
    before = quiz.get_state()
    quiz.answer = quiz._cards[:4]
    quiz.reveal()
    quiz.start_over()
    assert quiz.get_state() == before
    with pytest.raises(RuntimeError, match="hidden"):
        _ = quiz.order


def test_the_page_reveals_and_starts_over_as_python_does():
    quiz = OrderQuiz(recorded())
    quiz.set_state({"answer": quiz._cards[:2]})
    quiz.set_state({"revealed": True})
    assert len(quiz._result["rows"]) == 20
    quiz.set_state({"revealed": False, "answer": []})
    assert (quiz._result, quiz.answer, quiz.problem) == ({}, [], "")


def test_an_answer_after_the_order_is_known_is_refused():
    quiz = OrderQuiz(recorded())
    quiz.answer = quiz._cards[:2]
    order = quiz.reveal().rows
    with pytest.raises(ValueError, match=r"the answer cannot change. Call start_over\(\) to begin again"):
        quiz.answer = [row["torch"] for row in order]
    assert quiz.answer == quiz._cards[:2]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (["forward 7"], "no event 'forward 7'. The names to place are "),
        (["forward 1", "forward 1"], "'forward 1' is placed more often than it fired"),
    ],
)
def test_an_answer_with_a_wrong_name_is_refused(answer, text):
    quiz = OrderQuiz(recorded(kinds="forward"))
    with pytest.raises(ValueError, match=text):
        quiz.answer = answer
    assert quiz.answer == []


def test_an_answer_that_is_no_list_is_refused():
    with pytest.raises(traitlets.TraitError, match="answer"):
        OrderQuiz(recorded()).answer = 3


def test_too_few_or_too_many_events_make_no_quiz():
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    with pytest.raises(ValueError, match="52 events are too many to order, 40 at most"):
        OrderQuiz(recorded(deep))
    assert len(OrderQuiz(recorded(deep), kinds="full_backward")._cards) == 13
    with pytest.raises(ValueError, match=r"no order to guess: all events are 'forward \(root\)'"):
        OrderQuiz(recorded(), kinds="forward", layers="(root)")
    with pytest.raises(TypeError, match="seed must be an integer, not str"):
        OrderQuiz(recorded(), seed="a")


def test_it_can_be_read_before_it_runs():
    quiz = OrderQuiz(recorded(kinds="forward"))
    assert quiz.png.startswith(b"\x89PNG")
    assert quiz.alt == f"In which order do these 5 hooks fire? Shuffled: {', '.join(quiz._cards)}."
    page = quiz._repr_mimebundle_()[0]["text/html"]
    assert all(page.count(name) == 2 for name in quiz._cards if name.count(" ") == 1 and "root" in name), "alt, caption"
    assert "<table" not in page
    quiz.reveal()
    assert "missing</td>" in quiz._repr_mimebundle_()[0]["text/html"]
    quiz.start_over()
    quiz.answer = quiz._cards[:1]
    assert repr(quiz).endswith(f"placed:\n1. {quiz._cards[0]}")
    assert " at 0x" not in repr(quiz)


# Reasons: each is told of the pair that it is true of, and of no other.


def test_forward_reasons_come_from_what_ran_inside_what():
    said = reasons(recorded())
    inside = "runs inside the forward() of '0', and a forward"
    assert said["forward 0.0", "forward 0"] == f"'0.0' {inside} hook fires when forward() has returned."
    assert said["forward_pre 0", "forward_pre 0.0"] == f"'0.0' {inside} pre-hook fires before forward() begins."
    assert said["forward_pre 1", "forward 1"] == "a forward pre-hook fires before forward(), a forward hook after it."
    assert said["forward 0", "forward_pre 1"] == "'0' had returned when '1' began."


def test_a_name_alone_does_not_put_a_layer_inside_another():
    """The child is called on its own, before its parent."""
    model, x = nested(), torch.ones(1, 4)
    with record(model) as recording:
        model[0][0](x)
        model[1](torch.ones(1, 3))
    assert set(reasons(recording).values()) == {
        "a forward pre-hook fires before forward(), a forward hook after it.",
        "'0.0' had returned when '1' began.",
    }


def test_backward_reasons_if_the_input_requires_grad():
    said = reasons(recorded())
    assert (
        "the gradient of its input, which is computed last, after inner layers such as '0.0'"
        in said["full_backward 0.0", "full_backward 0"]
    )
    assert "needs only the gradient of its output" in said["full_backward_pre 0", "full_backward_pre 0.1"]
    assert said["full_backward 1", "full_backward_pre 0"].endswith("comes first: '1' was called after '0'.")
    assert said["full_backward_pre 1", "full_backward 1"].startswith(
        "the full backward pre-hook needs only grad_output"
    )
    assert said["forward (root)", "full_backward_pre (root)"].startswith("forward builds the graph")
    assert not any("requires grad" in text for text in said.values())


def test_backward_reasons_if_the_input_does_not_require_grad():
    said = reasons(recorded(grad=False))
    early = "no input of (root) requires grad. So its full backward hook has no gradient to wait for"
    assert said["full_backward (root)", "full_backward 1"].startswith(early)
    assert said["full_backward 0", "full_backward 0.1"].startswith("no input of '0' requires grad")
    assert not any("waits for the gradient" in text for text in said.values())


def test_reasons_of_parameters_and_the_layers_they_are_of():
    said = reasons(recorded(Twice(), parameters=True))
    assert "before the backward pass of the layer" in said["full_backward_pre head.0", "tensor head.0.weight"]
    assert "AccumulateGrad" in said["post_accumulate_grad head.0.weight", "full_backward head.0"]
    assert said["tensor head.0.bias", "post_accumulate_grad head.0.bias"].startswith("a tensor hook fires when")
    assert said["full_backward fc #2", "tensor fc.weight"] == (
        "fc was called 2 times. Its parameters' gradients are complete after all calls."
    )
    assert said["tensor head.0.weight", "full_backward head"].endswith("after inner layers such as 'head.0'.")
    assert said["tensor fc.weight", "full_backward fc"] == "", "its call is one of two"
    early = reasons(recorded(Twice(), grad=False, parameters=True))
    assert early["full_backward fc", "tensor fc.weight"].startswith("no input of call 1 of 'fc' requires grad")
    assert early["full_backward fc #2", "tensor fc.weight"].startswith("fc was called 2 times")


def test_reasons_along_one_tensor_and_around_a_step():
    model, x = nested(), torch.ones(1, 4, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record(model, tensors={"x": x}, optimizers=optimizer) as recording:
        y = recording.watch(model(x), "y", retain_grad=True, nodes=True)
        y.sum().backward()
        optimizer.step()
    said = reasons(recording)
    assert said["tensor y", "node_pre y"].startswith("a tensor hook fires when the gradient")
    assert said["retain_grad y", "node_pre y"].startswith("retain_grad fills .grad")
    assert said["tensor y", "full_backward_pre (root)"].startswith("if 'y' is the output of (root)")
    assert said["full_backward (root)", "tensor x"].startswith("if 'x' is the input of (root)")
    assert said["tensor x", "step_pre SGD"] == "step hooks fire around optimizer.step(), which was called later."
    assert said["step_pre SGD", "step_post SGD"] == "step pre-hooks fire before the step, post-hooks after it."


def test_where_the_recording_does_not_tell_no_reason_is_given():
    # Two passes, and the learner chose which runs backward first: no rule of torch's.
    layer = nn.Linear(4, 4)
    with record(layer) as recording:
        first, second = (layer(torch.ones(1, 4, requires_grad=True)).sum() for _ in range(2))
        first.backward()
        second.backward()
    events = recording.events
    assert explain_order(events[4], events[6], events, recording.notes) == (
        "full_backward_pre (root) comes before full_backward_pre (root) #2 in this run."
    )
    # What follows a backward pass need not be the forward pass of the next one.
    said = reasons(recorded(kinds=BACKWARD))
    assert said["full_backward 1", "full_backward 0"] == ""
    weights = reasons(recorded(parameters=True))
    assert weights["tensor 1.bias", "tensor 1.weight"] == ""


def test_a_second_pass_has_the_reasons_that_do_not_need_the_first():
    model, x = nested(), torch.ones(1, 4, requires_grad=True)
    with record(model) as recording:
        for _ in range(2):
            model(x).sum().backward()
    said = reasons(recording)
    assert said["forward_pre 0", "full_backward_pre 1"].startswith("forward builds the graph")
    assert said["forward 1 #2", "full_backward_pre 1 #2"].startswith("forward builds the graph")
    assert said["forward_pre 0 #2", "full_backward_pre 1 #2"] == ""
    assert said["full_backward (root)", "forward_pre (root) #2"] == ""


def test_reasons_for_hooks_of_the_learners():
    layer = nn.Linear(4, 4)

    def mine(module, args, output):
        pass

    def other(module, args, output):
        pass

    handles = [layer.register_forward_hook(mine), layer.register_forward_hook(other)]
    said = reasons(recorded(layer))
    for handle in handles:
        handle.remove()
    assert said["forward (root): mine", "forward (root): other"].startswith("global hooks come first")
    assert said["forward (root): mine", "forward (root)"].startswith("hookscope's own hook is registered last")
