"""GradientPlayground: every number is torch's own, the code does the same, and the sentences are true."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stdout
from itertools import combinations

import pytest
import torch
from PIL import Image

from hookscope_course.figures.gradient_playground.expression import _METHODS, KINDS, list_leaves, parse, run_expression
from hookscope_course.figures.gradient_playground.figure import EXPRESSIONS, GradientPlayground
from hookscope_course.figures.gradient_playground.tasks import TASKS, is_right, read_guess


def ran(code: str) -> dict[str, float | None]:
    """Run the code that the playground shows; return .grad of every tensor in it."""
    names: dict[str, object] = {}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        exec(code, names)
        warnings.simplefilter("ignore")  # .grad of what is no leaf
        tensors = {name: value for name, value in names.items() if isinstance(value, torch.Tensor)}
        return {name: None if value.grad is None else float(value.grad) for name, value in tensors.items()}


def test_plain_chain() -> None:
    playground = GradientPlayground()
    assert playground.grads == {"a": 12.0, "b": 8.0, "c": 6.0, "d": None, "e": None}
    rows = {row["tensor"]: row for row in playground.table.rows}
    assert rows["d"]["value"] == 6
    assert (rows["d"]["is_leaf"], rows["d"]["requires_grad"], rows["d"]["retains_grad"]) == (False, True, False)
    assert (rows["a"]["is_leaf"], rows["a"][".grad before"], rows["a"][".grad after"]) == (True, "None", 12)
    assert playground.notes == ["d.grad and e.grad are None: they are not leaves and have no retain_grad()."]
    assert playground.problem == ""


@pytest.mark.parametrize("expression", [*EXPRESSIONS, "y = x ** 2; z = y * y; w = -z"])
@pytest.mark.parametrize(("zero", "runs"), [(False, 1), (False, 3), (True, 3)])
def test_the_code_gives_the_same_numbers(expression: str, zero: bool, runs: int) -> None:
    playground = GradientPlayground(expression, {"x": 3.0}, zero_grad=zero)
    names = [name for name, row in playground._run_record.tensors.items() if row.requires_grad]
    playground.factors = {names[0]: 10.0, names[-2]: -0.5}
    for first, second in [*zip(KINDS, KINDS, strict=True), *zip(KINDS, reversed(KINDS), strict=True)]:
        playground.choices = {names[0]: first, names[-2]: second}
        playground.runs = runs
        assert ran(playground.code) == playground.grads
        assert playground.problem == ""


@pytest.mark.parametrize("kind", ["hook, then retain_grad", "retain_grad, then hook"])
def test_retain_grad_sees_what_the_hook_returned_in_either_order(kind: str) -> None:
    playground = GradientPlayground(choices={"d": kind}, factors={"d": 10})
    row = next(row for row in playground.table.rows if row["tensor"] == "d")
    assert (row["arrived"], row["hook saw"], row["hook returned"], row[".grad after"]) == (4, 4, 40, 40)
    assert row["retains_grad"] is True
    assert playground.grads["a"] == 120
    assert any(
        note.startswith("d.grad is 40: retain_grad() stores what the hook returned") for note in playground.notes
    )
    assert ("although you called" in " ".join(playground.notes)) == kind.startswith("retain_grad")
    assert "Without hooks, a.grad would be 12 and b.grad would be 8." in playground.notes


def test_hook_on_a_leaf_and_retain_grad_on_a_leaf() -> None:
    playground = GradientPlayground(choices={"a": "hook, then retain_grad"}, factors={"a": 3})
    assert playground.grads["a"] == 36
    assert "The hook on a saw 12 and returned 36; it is added to a.grad." in playground.notes
    assert "retain_grad() has no effect on a, because a leaf always stores its .grad." in playground.notes
    playground.run()
    assert playground.grads["a"] == 72
    assert next(row for row in playground.table.rows if row["tensor"] == "a")["hook saw"] == 12


def test_a_tensor_used_twice_gets_one_call_with_the_sum() -> None:
    playground = GradientPlayground("used twice", choices={"d": "hook"})
    played = playground._run_record
    assert [use.on for use in played.edges["f", "d"]] == [1]
    assert [use.on for use in played.edges["e", "d"]] == [4]
    assert (played.tensors["d"].saw, played.tensors["d"].returned) == (5, 10)
    square = GradientPlayground("d = a * a", choices={"a": "hook"})
    assert [use.on for use in square._run_record.edges["d", "a"]] == [2, 2]
    assert square._run_record.tensors["a"].saw == 4
    assert "1 × 2 + 1 × 2" in [arrow["text"] for arrow in square.shown["drawing"]["arrows"]]


def test_arrows_show_the_factors_of_the_chain_rule() -> None:
    def texts(playground: GradientPlayground) -> list[str]:
        return [arrow["text"] for arrow in playground.shown["drawing"]["arrows"]]

    playground = GradientPlayground()
    assert sorted(texts(playground)) == ["1 × 4 = 4", "1 × 6 = 6", "4 × 2 = 8", "4 × 3 = 12"]
    playground.set("d", hook=10)  # what comes back to a step is what the hook on its tensor returned
    assert sorted(texts(playground)) == ["1 × 4 = 4", "1 × 6 = 6", "40 × 2 = 80", "40 × 3 = 120"]
    assert texts(GradientPlayground(live=False)) == [""] * 4
    assert "1 × (-1) = -1" in texts(GradientPlayground("y = 3 - x", {"x": 2.0}))
    quotient = GradientPlayground("y = x / x", {"x": 2.0})
    assert texts(quotient) == ["1 × 0.5 + 1 × (-0.5)"]
    nothing = GradientPlayground("y = x * 0; z = y ** 2", {"x": 2.0})  # a local gradient is there though 0 comes back
    assert sorted(texts(nothing)) == ["0 × 0 = 0", "1 × 0 = 0"]
    for use in (use for flow in playground._run_record.edges.values() for use in flow):
        assert use.back * use.local == use.on


def test_of_a_tensor_used_twice_the_sum_is_explained() -> None:
    playground = GradientPlayground("used twice")
    assert playground.notes[0] == "d is used twice: 4 from e and 1 from f. They add up: 4 + 1 = 5."
    lines = [text for box in playground.shown["drawing"]["boxes"] for text, _ in box["lines"]]
    assert "arrives: 4 + 1 = 5" in lines
    cube = GradientPlayground("y = -x; z = x * y; w = z * x", {"x": 2.0})
    assert (
        cube.notes[0] == "x is used 3 times: -4 from y, -4 from z and -4 from w. They add up: -4 + (-4) + (-4) = -12."
    )
    assert not any("used" in note for note in GradientPlayground().notes)


def test_two_texts_on_one_line_do_not_read_as_one() -> None:
    playground = GradientPlayground("d = a * b; e = d * c", {"a": 2.0, "b": 3.0, "c": 5.0})
    playground.set("d", hook=-10, retain_grad=True)
    arrows = playground.shown["drawing"]["arrows"]
    spans = [(x - len(text) * 3.65, x + len(text) * 3.65, y) for text, (x, y) in ((a["text"], a["at"]) for a in arrows)]
    for left, right in combinations(sorted(spans), 2):
        assert abs(left[2] - right[2]) >= 17 or right[0] - left[1] >= 30, spans


@pytest.mark.parametrize(
    "text", [*EXPRESSIONS, "d = a * b; e = d * a; f = e * a; g = f * d", "d = a * b; e = a * c; f = d * e"]
)
def test_no_line_crosses_a_text_of_another(text: str) -> None:
    drawing = GradientPlayground(text, {"a": 0.3719, "b": -1.2345, "c": 0.7071}).shown["drawing"]
    areas = []
    for arrow in drawing["arrows"]:
        (x, y), half = arrow["at"], len(arrow["text"]) * 7.3 / 2
        area = (x - half, y - 7, x + half, y + 7)
        for other in drawing["arrows"]:
            if other is arrow:
                continue
            for (x1, y1), (x2, y2) in zip(other["points"], other["points"][1:], strict=False):
                points = ((x1 + (x2 - x1) * t / 200, y1 + (y2 - y1) * t / 200) for t in range(201))
                assert not any(area[0] < px < area[2] and area[1] < py < area[3] for px, py in points)
        for box in drawing["boxes"]:
            apart = area[2] <= box["x"] or box["x"] + box["width"] <= area[0]
            assert apart or area[3] <= box["y"] or box["y"] + box["height"] <= area[1]
        for left, top, right, bottom in areas:
            assert area[2] <= left or right <= area[0] or area[3] <= top or bottom <= area[1]
        areas.append(area)


def test_detach_ends_the_way_back() -> None:
    playground = GradientPlayground("detached")
    assert playground.grads["a"] == 18
    assert "e does not require grad, so the backward pass ends there." in playground.notes
    assert [arrow["text"] for arrow in playground.shown["drawing"]["arrows"] if not arrow["flows"]] == [
        "no gradient"
    ] * 2
    with pytest.raises(
        ValueError, match="torch refuses hook on e, which does not require grad: cannot register a hook"
    ):
        playground.set("e", hook=2)
    with pytest.raises(ValueError, match="torch refuses retain_grad on e"):
        playground.choices = {"e": "retain_grad"}
    assert playground.choices == {}
    assert playground.grads["a"] == 18


def test_accumulation_is_shown_and_said() -> None:
    playground = GradientPlayground()
    playground.run()
    assert playground.runs == 2
    assert playground.grads["a"] == 24
    assert "a.grad went from 12 to 24" in playground.notes[-1]
    assert "without zeroing" in playground.notes[-1]
    playground.zero_grad = True
    assert playground.runs == 1, "something changed: the tensors are made anew"
    playground.run()
    assert playground.grads["a"] == 12
    row = next(row for row in playground.table.rows if row["tensor"] == "a")
    assert (row[".grad before"], row[".grad after"]) == (12, 12)
    assert "a.grad, b.grad and c.grad were set to None" in playground.notes[-1]
    assert "for _ in range(2):\n    a.grad = b.grad = c.grad = None\n" in playground.code
    playground.restart()
    assert set(playground.grads.values()) == {None}


def test_not_live_waits_for_run() -> None:
    playground = GradientPlayground(live=False)
    assert playground.runs == 0
    assert set(playground.grads.values()) == {None}
    assert playground.notes == ["Backward has not run yet. Guess every .grad first, then run backward."]
    playground.set("d", hook=2)
    assert playground.runs == 0
    playground.run()
    assert playground.grads["a"] == 24
    playground.values = playground.values | {"a": 5}
    assert playground.runs == 0
    playground.live = True
    assert playground.runs == 1
    assert playground.grads["b"] == 40
    playground.run()
    playground.live = False
    assert playground.runs == 2, "switching live off takes nothing away"


def test_set_and_changing_the_expression() -> None:
    playground = GradientPlayground()
    playground.set("d", retain_grad=True, hook=2.5)
    assert (playground.choices, playground.factors) == ({"d": "hook, then retain_grad"}, {"d": 2.5})
    playground.set("d", retain_grad=True, hook=2.5, first="retain_grad")
    assert playground.choices == {"d": "retain_grad, then hook"}
    playground.set("d", retain_grad=True)
    assert playground.choices == {"d": "retain_grad"}
    playground.set("d")
    assert playground.choices == {}
    playground.set("c", hook=0)
    assert playground.grads["c"] == 0
    playground.expression = "detached"
    assert playground.choices == {}
    assert list(playground.grads) == ["a", "b", "d", "e", "f"]


@pytest.mark.parametrize(
    "text", ["y = x + 1", "y = 2 - x", "y = x / 4", "y = x / x", "y = x ** 3", "y = 2 ** x", "y = -x"]
)
def test_operations(text: str) -> None:
    playground = GradientPlayground(text, {"x": 2.0})
    assert ran(playground.code) == playground.grads
    assert playground.grads["x"] == sum(use.on for use in playground._run_record.edges["y", "x"])


@pytest.mark.parametrize("method", [name for name in _METHODS if name != "detach"])
def test_methods(method: str) -> None:
    steps = parse(f"y = x.{method}()")
    played = run_expression(steps, {"x": 0.5}, {}, {}, False, 1)
    x = torch.tensor(0.5, requires_grad=True)
    getattr(x, method)().backward()
    assert played.tensors["x"].after == float(x.grad)
    assert [use.on for use in played.edges["y", "x"]] == [float(x.grad)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "no expression 'nonsense'. Choose chain"),
        ("d = a * b * c", "write one operation"),
        ("d = __import__('os').system('true')", "write one operation|no method"),
        ("d = a.backward()", "no method 'backward'"),
        ("d = a.relu(b)", "write one operation"),
        ("d = a * True", "write one operation"),
        ("d = 'a' * 3", "write one operation"),
        ("d = a *", "is not a step"),
        ("d += a; e = d", "is not a step"),
        ("a = a * b", "cannot use its own name"),
        ("d = a * b; d = d * c", "is used already"),
        ("d = a * b; a = d * c", "is used already"),
        ("d = a * b; e = c * c", "d is not used"),
        ("torch = a * b", "Use other names"),
        ("d = a * x", "the leaf x has no value. Pass values="),
        ("d = a.detach()", "d does not require grad"),
        ("y = 2 / a", "more than one node"),
        ("; ".join(f"d{i + 1} = d{i} * 2" for i in range(9)), "9 steps"),
    ],
)
def test_bad_expressions_say_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GradientPlayground(text, {"d0": 1.0})
    playground = GradientPlayground()
    with pytest.raises(ValueError, match=said.replace("values=", "values=") if "d0" not in text else "."):
        playground.expression = text
    assert playground.expression == "chain"
    assert playground.grads["a"] == 12


def test_infinite_and_nan_gradients_reach_the_page_as_text() -> None:
    playground = GradientPlayground("y = x.sqrt(); z = y * y", {"x": 0.0})
    row = next(row for row in playground.shown["rows"] if row["tensor"] == "x")
    assert row[".grad after"] == "nan"
    assert not [note for note in playground.notes if note.startswith("Without hooks")]


def test_values_are_torchs_whatever_the_callers_mode() -> None:
    with torch.inference_mode():
        assert GradientPlayground().grads["a"] == 12
    with torch.no_grad():
        playground = GradientPlayground()
        playground.run()
        assert playground.grads["a"] == 24
        assert not torch.is_grad_enabled()


def test_leaves_are_in_order() -> None:
    assert list_leaves(parse("d = c * b; e = d * a")) == ["a", "b", "c"]


def test_the_picture_and_its_words() -> None:
    playground = GradientPlayground()
    first = playground.png
    assert Image.open(io.BytesIO(first)).size[0] > 200
    assert playground.alt.startswith("Graph of d = a * b; e = d * c, after 1 backward pass")
    assert "a.grad 12, b.grad 8, c.grad 6, d.grad None and e.grad None" in playground.alt
    playground.set("d", hook=10)
    assert playground.png != first
    assert "a.grad 120" in playground.alt
    assert "a.grad 120, b.grad 80," in repr(playground)


def test_every_number_on_the_graph_is_in_the_table() -> None:
    playground = GradientPlayground("used twice", choices={"d": "hook, then retain_grad"}, factors={"d": 7})
    shown = playground.shown
    text = " ".join(line for box in shown["drawing"]["boxes"] for line, _ in box["lines"])
    assert "hook × 7: 5 → 35" in text
    assert ".grad: 35" in text
    assert "not a leaf, retain_grad" in text
    cells = {row["tensor"]: row for row in shown["rows"]}
    assert (cells["d"]["hook saw"], cells["d"]["hook returned"], cells["d"][".grad after"]) == ("5", "35", "35")
    assert cells["a"]["hook saw"] == "–"


def test_gradients_travel_in_the_order_of_the_engine() -> None:
    playground = GradientPlayground("used twice")
    drawing = playground.shown["drawing"]
    assert {box["name"]: box["stage"] for box in drawing["boxes"]} == {"f": 0, "e": 1, "d": 2, "c": 2, "a": 3, "b": 3}
    fired: list[str] = []
    a, b, c = (torch.tensor(value, requires_grad=True) for value in (2.0, 3.0, 4.0))
    d = a * b
    e = d * c
    f = d + e
    for name, tensor in {"d": d, "e": e, "f": f}.items():
        tensor.grad_fn.register_hook(lambda *_, name=name: fired.append(name))  # type: ignore[union-attr]
    f.backward()
    assert fired == ["f", "e", "d"]
    assert sorted((arrow["stage"], *arrow["values"]) for arrow in drawing["arrows"]) == [
        (1, "1"),
        (1, "1"),
        (2, "4"),
        (2, "6"),
        (3, "10"),
        (3, "15"),
    ]


def test_a_graph_keeps_its_size_whatever_is_put_on_it() -> None:
    for expression in EXPRESSIONS:
        playground = GradientPlayground(expression, guess=True)
        playground.expression = expression
        size = [(box["x"], box["y"], box["width"], box["height"]) for box in playground.shown["drawing"]["boxes"]]
        for kind in KINDS:
            playground.choices = {"a": kind, "d": kind}
            for runs in range(3):
                playground.runs = runs
                boxes = playground.shown["drawing"]["boxes"]
                assert [(box["x"], box["y"], box["width"], box["height"]) for box in boxes] == size
                assert all(len(box["before"]) == len(box["lines"]) for box in boxes)


@pytest.mark.parametrize("task", range(len(TASKS)))
def test_a_task_tells_nothing_before_it_has_run(task: int) -> None:
    playground = GradientPlayground(guess=True)
    playground.task = task
    assert (playground.runs, playground.guesses, playground.shown["answers"], playground.score) == (0, {}, {}, "")
    assert not any(value for value in playground.grads.values())
    assert playground.notes == []
    asked = playground.shown["asks"]
    lines = [text for box in playground.shown["drawing"]["boxes"] for text, _ in box["lines"]]
    assert not any(text.startswith("arrives") for text in lines)
    right = GradientPlayground(TASKS[task].expression, choices=TASKS[task].choices, factors=TASKS[task].factors).grads
    playground.guesses = {name: str(right[name]) for name in asked}
    assert playground.runs == 0, "a guess does not run backward"
    playground.run()
    assert playground.grads == right
    assert playground.score == f"{len(asked)} of {len(asked)} right"
    assert playground.score in playground.summary()
    for name in asked:
        for guess, _ in playground.shown["answers"][name]["reasons"]:
            assert not is_right(guess, right[name]), (name, guess)


def test_a_wrong_guess_gets_its_reason() -> None:
    playground = GradientPlayground(guess=True)
    playground.task = 1
    playground.guesses = {"a": "12", "b": "8", "c": "60", "d": "4"}
    playground.run()
    assert playground.score == "0 of 4 right"

    def reason(name: str) -> str:
        typed, answer = read_guess(playground.guesses[name]), playground.shown["answers"][name]
        return next((why for guess, why in answer["reasons"] if is_right(guess, typed)), answer["otherwise"])

    assert reason("a") == "That would be so without the hook on d. What it returns flows on to a."
    assert reason("c") == "The gradient of c does not pass the hook."
    assert reason("d") == "4 arrives at d; then its hook returns 40."
    playground.task = 3
    playground.guesses = {"a": "12", "d": "1"}
    playground.run()
    assert reason("a") == "d is used more than once. The gradients of its uses add up before they go on to a."
    assert reason("d") == "1 comes from one use of d. It is used more than once, and the gradients add up."
    playground.runs = 2
    assert playground.score == "", "a guess is about the first pass"


def test_a_task_begins_with_the_values_that_were_given() -> None:
    playground = GradientPlayground(values={"a": 5.0}, guess=True)
    playground.values = {"a": 12.0, "b": 0.0, "c": 1.0}
    playground.expression = "d = a * a"
    assert playground.task == -1
    playground.task = 1
    assert playground.values == {"a": 5.0, "b": 3.0, "c": 4.0}
    assert playground.expression == "chain"


def test_a_change_of_ones_own_ends_the_task() -> None:
    playground = GradientPlayground(guess=True)
    assert (playground.task, playground.shown["asks"]) == (0, ["a", "b", "c", "d", "e"])
    playground.guesses = {"a": "None", "b": " 8 "}
    assert playground.guesses == {"a": "None", "b": "8"}
    playground.restart()
    assert playground.guesses == {"a": "None", "b": "8"}, "she can change them and run again"
    playground.set("c", hook=3)
    assert (playground.task, playground.guesses, playground.runs) == (-1, {}, 0)
    playground.set_state({"task": 2, "runs": 0, "guesses": {}, "_request": 1})
    assert (playground.task, playground.choices, playground.factors) == (2, {"a": "hook"}, {"a": 10.0})
