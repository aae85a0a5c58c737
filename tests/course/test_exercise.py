"""What a learner meets: blanks that never raise, feedback in words, staged hints, the solution."""

import copy
import functools
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from lessons.checks import Feedback, Wrong, ____
from tests.course.test_checks import RIGHT, TRIPLE, global_hooks, run_cell, sample


def exercise(check=lambda answer: None, **changes):
    return sample(check=check, **changes)


def outcome(answer):
    return exercise().check(answer).outcome


def call_it(answer):
    answer(nn.Identity(), (1,))


def ask(code, check=call_it, **names):
    """Run a learner's cell that ends in q9.check(…)."""
    return run_cell(code, {"__name__": "__main__", "torch": torch, "____": ____, "q9": exercise(check), **names})


# ---- the blank


@pytest.mark.parametrize(
    "code",
    """____ + 1 · 1 - ____ · [1] + ____ · (1,) * ____ · -____ · ____ ** 2 · ____ == 3 · 1 < ____ · divmod(____, 2)
    ____.weight.grad · ____(1, key=2) · ____[0, 1:] · x + ____ · ____ * x · x @ ____ · x[____] · x[____, 0]
    x.view(____, 1) · x.sum(dim=____) · x.mean(____) · x.amax(dim=____, keepdim=True) · torch.stack([x, ____])
    torch.equal(x, ____) · torch.relu(____) · torch.zeros(____) · nn.Linear(2, 3)(____) · nn.ReLU()(____)
    nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2))(____) · round(____, 2) · sum(____)
    hooked(x) · pre_hooked(x) · np.array([1]) + ____ · np.sin(____) · np.add(1, ____) · max(____, 3)
    nn.CrossEntropyLoss()(____, x) · torch.autograd.grad(____, x) · next(iter(____)) · ____.remove()
    copy.deepcopy(____) · pickle.loads(pickle.dumps(____))""".replace("\n", " · ").split(" · "),
)
def test_a_blank_stays_blank(code):
    hooked, pre_hooked = nn.Linear(3, 3), nn.Linear(3, 3)
    hooked.register_forward_hook(____)
    pre_hooked.register_forward_pre_hook(lambda module, args: ____)
    names = {"x": torch.ones(2, 3), "hooked": hooked, "pre_hooked": pre_hooked, "pickle": pickle, "copy": copy}
    result = eval(code.strip(), {**globals(), **names})
    assert (result[0] if isinstance(result, tuple) else result) is ____


def test_a_blank_stands_in_for_python_s_own_protocols():
    a, b = ____
    c, *d, e, f = ____
    assert all(each is ____ for each in (a, b, c, e, f))
    assert d == []
    with ____ as g, ____:
        assert g is ____
    assert [*____] == list(____) == [____]
    assert {**____} == {____: ____}
    ____.weight, ____[0] = 1, 2
    del ____.weight, ____[0]
    total = ____
    total += 1
    assert total is ____

    class Hook(____):
        pass

    assert Hook.__mro__ == (Hook, object)
    assert (bool(____), len(____), int(____), float(____), complex(____)) == (False, 0, 0, 0.0, 0j)
    assert [7, 8, 9][____] == 7
    assert [7, 8, 9][:____] == []
    assert not isinstance(3, ____)
    assert 3 not in ____
    assert repr(____) == str(____) == f"{____:.2f}" == "____"
    assert torch.tensor(____).numel() == torch.tensor([____]).numel() == 0
    assert np.isnan(np.array(____))
    with pytest.raises(RuntimeError, match="goes through"), ____:
        raise RuntimeError("goes through")


def test_a_blank_is_shown_as_itself():
    ipython = pytest.importorskip("IPython.core.formatters")
    assert ipython.DisplayFormatter().format(____)[0] == {"text/plain": "____"}
    assert not any(hasattr(____, name) for name in ("_repr_html_", "_ipython_display_", "__wrapped__"))


# ---- not attempted


def outer():
    inner_value = ____

    def inner():
        return inner_value

    return inner


def decorated():
    @functools.wraps(names_it)
    def wrapper(*args):
        return None

    return wrapper


def names_it(module, args):
    ____  # noqa: B018


def nested(module, args):
    return [lambda: ____ for _ in args]


def signature_only(____):
    pass


class Recorder:
    def __init__(self, kept=None):
        self.kept = kept

    def __call__(self, module, args):
        return ____

    def fine(self, module, args):
        return None

    @property
    def size(self):
        return ____


class Finished:
    def __call__(self, module, args):
        """A docstring with a line: ____."""
        return


class Derived(Recorder):
    pass


class BasedOnBlank(____):
    pass


@pytest.mark.parametrize(
    "answer",
    [
        ____,
        [1, [2, ____]],
        ({"a": {"b": ____}},),
        {____: 1},
        {____},
        ____ + 1,
        "____",
        names_it,
        nested,
        signature_only,
        outer(),
        decorated(),
        [decorated()],
        BasedOnBlank,
        BasedOnBlank(),
        lambda module, args: ____,
        lambda module, args, *, scale=____: args,
        lambda module: module.____(names_it),
        functools.partial(names_it, 1),
        functools.partial(print, ____),
        Recorder,
        Derived,
        Recorder(),
        Recorder().__call__,
        property(names_it),
        Finished.__call__.__class__(Finished.__call__.__code__, globals(), "f", (____,)),
    ],
    ids=lambda answer: None,
)
def test_not_attempted(answer):
    feedback = exercise(check=lambda answer: pytest.fail("a blank must not be run")).check(answer)
    assert feedback.outcome == "not attempted"
    assert repr(feedback) == (
        "Not attempted: replace ____ with your own code and run the cell again; `q9.hint()` helps."
    )


@pytest.mark.parametrize(
    "answer",
    [None, 0, "a ____ b", [], {}, Finished, Finished(), nn.Linear(2, 3), torch.zeros(3), nn.Linear, len, print, np],
    ids=lambda answer: None,
)
def test_attempted(answer):
    assert outcome(answer) == "right"


def test_no_answer_is_not_attempted():
    assert exercise().check().outcome == "not attempted"


def test_a_blank_in_the_cell_is_seen_though_its_value_is_not():
    code = "losses = [0.5, 0.25]\nanswer = losses[____]\nq9.check(answer)"
    assert ask(code, check=lambda answer: None).outcome == "not attempted"
    assert ask(code.replace("____", "0"), check=lambda answer: None).outcome == "right"
    unused = "from lessons.checks import ____  # replace ____ below\nq9.check(0)"
    assert ask(unused, check=lambda answer: None).outcome == "right"


def test_a_blank_met_while_checking_is_not_attempted():
    names = {"q9": exercise(lambda answer: answer(nn.Identity(), (1,))), "____": ____}
    exec("def helper(value):\n    return ____ * value\n", names)
    feedback = run_cell("def double(module, args):\n    return helper(2)\nq9.check(double)", names)
    assert feedback.outcome == "not attempted"
    exec("def helper(value):\n    return value\n", names)
    names["q9"] = exercise(lambda answer: None if answer(nn.Identity(), (1,)) == 2 else Wrong("no"))
    assert run_cell("q9.check(double)", names).outcome == "right"


# ---- right and wrong


def test_outcomes_and_their_words():
    right = exercise(why="because `forward` got it.").check(1)
    assert (right.outcome, right.message) == ("right", "because `forward` got it.")
    assert repr(right) == "Right. Because `forward` got it."
    for check in (lambda answer: Wrong("it was 3"), lambda answer: (_ for _ in ()).throw(Wrong("it was 3"))):
        wrong = exercise(check).check(1)
        assert isinstance(wrong, Feedback)
        assert (wrong.outcome, wrong.message) == ("wrong", "it was 3")
        assert repr(wrong) == "Not yet. It was 3"


def test_feedback_as_html_is_escaped_and_not_told_by_colour_alone():
    bundle = exercise(lambda answer: Wrong("`args` is <img src=x onerror=alert(1)>\nnot 3"))
    bundle = bundle.check(1)._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == "Not yet. `args` is <img src=x onerror=alert(1)>\nnot 3"
    page = bundle["text/html"]
    assert 'role="status"' in page
    assert "<img" not in page
    assert "<code>args</code> is &lt;img src=x onerror=alert(1)&gt;<br>not 3" in page
    signs = {}
    for kind, answer in {"right": 1, "wrong": 2, "not attempted": ____}.items():
        feedback = exercise(lambda answer: None if answer == 1 else Wrong("no")).check(answer)
        assert feedback.outcome == kind
        page = feedback._repr_mimebundle_()["text/html"]
        signs[kind] = page.split('aria-hidden="true">')[1][0], page.split("border-left: 4px ")[1].split()[0]
        assert "color:" not in page  # the text keeps the colours of the theme
    assert len({sign for sign, _ in signs.values()}) == len({border for _, border in signs.values()}) == 3


def test_wrapped_lines_are_one_sentence_and_code_items_and_paragraphs_stay_apart():
    question = """
Write a hook
that returns `2 *
output`. It may
    be called twice.
```
def hook(module, args, output):
    x = 1
    # A: no item
```
Order
these.

Then say
A: why
it is so
- or not
1. or when
"""
    q9 = exercise(question=question, why="torch calls\nit.", hints=["Look\nat it.", "A:\n```\nx\ny\n```"])
    page = q9._repr_mimebundle_()["text/html"]
    assert "Write a hook that returns <code>2 * output</code>. It may be called twice.<pre><code>def" in page
    assert (
        "output):\n    x = 1\n    # A: no item</code></pre>Order these.<br><br>Then say<br>A: why it is so<br>" in page
    )
    assert "<br>- or not<br>1. or when<br><code>q9.check(" in page
    assert "returns `2 * output`. It may be called twice.\n```\ndef hook" in repr(q9)
    assert q9.check(1).message == "torch calls it."
    assert "Look at it." in q9.hint()._repr_mimebundle_()["text/html"]
    assert "<pre><code>x\ny</code></pre>" in q9.hint()._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def double(module, args):\n    x = 0.5\n    return x * args\n\nq9.check(double)",
            "line 3 of your double (`return x * args`) raised TypeError: can't multiply sequence by non-int",
        ),
        (
            "\n\nclass Hook:\n    def __call__(self, module, args):\n        return self.missing\nq9.check(Hook())",
            "line 2 of your Hook.__call__ (`return self.missing`) raised AttributeError: 'Hook' object has no",
        ),
        ("q9.check(lambda module, args: 1 / 0)", "line 1 of your lambda (`q9.check(lambda module, args: 1 / 0)`) "),
        ("def f(module, args):\n    return [1 / a for a in (0,)]\nq9.check(f)", "raised ZeroDivisionError: division"),
        (
            "def outer():\n    def hook(module, args):\n\n        raise KeyError('conv9')\n    return hook\n"
            "q9.check(outer())",
            "line 3 of your hook (`raise KeyError('conv9')`) raised KeyError: 'conv9'",
        ),
        (
            "def helper():\n    raise SystemExit(3)\ndef f(module, args):\n    helper()\nq9.check(f)",
            "line 2 of your helper (`raise SystemExit(3)`) raised SystemExit: 3",
        ),
        ("def f(module):\n    pass\nq9.check(f)", "checking your answer raised TypeError: f() takes 1 positional"),
        ("q9.check(3)", "checking your answer raised TypeError: 'int' object is not callable"),
        (
            "class E(Exception):\n    def __str__(self):\n        raise ValueError\n"
            "def f(module, args):\n    raise E\nq9.check(f)",
            "line 2 of your f (`raise E`) raised E: ",
        ),
        ("def f(module, args):\n    f(module, args)\nq9.check(f)", "raised RecursionError: maximum recursion"),
        (
            "def f(module, args):\n    raise ValueError(f)\nq9.check(f)",
            "line 2 of your f (`raise ValueError(f)`) raised ValueError: <function f>",
        ),
        (
            "def f(module, args):\n    torch.ones(2) @ torch.ones(3)\nq9.check(f)",
            "line 2 of your f (`torch.ones(2) @ torch.ones(3)`) raised RuntimeError: inconsistent tensor size",
        ),
    ],
)
def test_whatever_the_answer_raises_becomes_words(code, message):
    feedback = ask(code)
    assert feedback.outcome == "wrong"
    assert message in feedback.message


def test_an_error_in_a_backward_hook_names_the_learner_s_line():
    def check(answer):
        module = nn.Linear(2, 2)
        module.register_full_backward_hook(answer)
        module(torch.ones(1, 2, requires_grad=True)).sum().backward()

    feedback = ask("def hook(module, gi, go):\n    return gi[9]\nq9.check(hook)", check)
    assert feedback.message.startswith("line 2 of your hook (`return gi[9]`) raised IndexError: tuple index")


def test_the_quoted_line_is_never_another_cell_s():
    names = {"__name__": "__main__", "q9": exercise(lambda answer: answer(1, 2))}
    exec(compile("def double(module, args):\n    return args.nope\n", "<cell>", "exec"), names)
    for later in ("first = 1\nsecond = 2\nq9.check(double)", "q9.check(double)", "double\nq9.check(double)"):
        feedback = run_cell(later, names)
        assert feedback.message.startswith("line 2 of your double raised AttributeError")


def test_a_keyboard_interrupt_passes_through_and_hooks_still_come_off():
    def interrupt(answer):
        nn.modules.module.register_module_forward_hook(lambda *_: None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise(interrupt).check(1)
    assert not global_hooks()


def test_a_wrong_number_of_answers_is_told():
    feedback = exercise().check(1, 2)
    assert (feedback.outcome, feedback.message) == (
        "wrong",
        "this check is called as `q9.check(double)`; it got 2 answers",
    )
    both = "q9.check(1, 2)"
    pair = exercise(lambda first, second: None, solution=both, wrong={"q9.check(1, 3)": "no", "q9.check(2, 2)": "no"})
    assert pair.check(1, 2).outcome == "right"


def test_a_check_that_answers_neither_none_nor_wrong_is_refused():
    with pytest.raises(TypeError, match=r"the check of exercise 09.1 returned True, not None or Wrong"):
        exercise(lambda answer: True).check(1)


def test_what_the_learner_prints_is_shown_with_the_feedback(capsys):
    feedback = ask("def f(module, args):\n    print('<b>', args)\nq9.check(f)", warn := (lambda answer: answer(1, 2)))
    assert feedback.printed == "<b> 2"
    assert repr(feedback).endswith("\nPrinted while checking:\n<b> 2")
    assert "Printed while checking:\n&lt;b&gt; 2</pre>" in feedback._repr_mimebundle_()["text/html"]
    assert ask("def f(module, args):\n    print(1)\n    1 / 0\nq9.check(f)", warn).printed == "1"
    assert capsys.readouterr() == ("", "")


# ---- nothing is left behind


def test_hooks_registered_while_checking_are_removed_whatever_happens():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    mine = model.register_forward_hook(lambda module, args, output: None)
    code = (
        "def f(module, args):\n    handles.append(model[0].register_forward_hook(print))\n"
        "    model[0].weight.register_hook(print)\n    models[0].register_forward_pre_hook(print)\n"
        "    nn.modules.module.register_module_forward_pre_hook(lambda *_: None)\n    {end}\nq9.check(f)"
    )
    for end, expected in {"return": "right", "1 / 0": "wrong"}.items():
        other = nn.ReLU()
        names = {"model": model, "models": [other], "handles": [], "nn": nn}
        feedback = ask(code.format(end=end), check=lambda answer: answer(1, 2), **names)
        assert feedback.outcome == expected, feedback
        assert not model[0]._forward_hooks
        assert not model[0].weight._backward_hooks
        assert not other._forward_pre_hooks
        assert not global_hooks()
    assert list(model._forward_hooks) == [mine.id]


def test_random_numbers_grad_mode_and_warnings_are_as_before():
    drawn = []

    def check(answer):
        drawn.append((torch.rand(1).item(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        torch.set_grad_enabled(False)
        warnings.simplefilter("error")
        torch.manual_seed(5)

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = torch.rand(1)
    filters = list(warnings.filters)
    assert exercise(check).check(1).outcome == "right"
    assert torch.is_grad_enabled()
    assert warnings.filters == filters
    second = torch.rand(1)
    with torch.inference_mode():
        exercise(check).check(1)
    with torch.no_grad():
        exercise(check).check(1)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.cat([first, second, torch.rand(1)]), expected)
    assert len(set(drawn)) == 1
    assert drawn[0][1:] == (True, False)


def test_warnings_stay_out_of_the_page(recwarn):
    def check(answer):
        warnings.warn("from the check", UserWarning, stacklevel=1)

    assert exercise(check).check(1).outcome == "right"
    assert not recwarn.list


# ---- hints, solution, the exercise itself


def test_hints_come_one_by_one_and_the_last_one_says_so():
    q9 = sample()
    assert repr(q9.hint()) == "Hint 1 of 2. Look at what the pre-hook returns."
    assert repr(q9.hint()) == "Hint 2 of 2. Return a tuple: `(2 * args[0],)`."
    for _ in range(2):
        assert repr(q9.hint()) == (
            "Hint 2 of 2, again. Return a tuple: `(2 * args[0],)`.\n"
            "There is no further hint; `q9.solution()` shows the solution."
        )
    assert "<code>(2 * args[0],)</code>" in q9.hint()._repr_mimebundle_()["text/html"]
    assert repr(sample(hints="one").hint()) == "Hint 1 of 1. One"


def test_the_solution_is_its_code():
    solution = sample().solution()
    bundle = solution._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/plain": RIGHT.rstrip(), "text/markdown": f"```python\n{RIGHT}```"}
    assert solution.code == RIGHT
    fenced = sample(solution="text = '```'\nq9.check(text)\n").solution()._repr_mimebundle_()["text/markdown"]
    assert fenced.startswith("````python\n")
    assert fenced.endswith("\n````")


def test_an_exercise_shows_its_question_and_what_can_be_called():
    assert repr(sample()) == (
        "Exercise 09.1 (easy, 3 min). Write a pre-hook `double` that doubles the input.\n"
        "`q9.check(double)` checks your answer, `q9.hint()` gives a hint (2), `q9.solution()` shows the solution."
    )
    assert "<code>q9.check(double)</code>" in sample()._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"wrong": {TRIPLE: "x"}}, r"exercise 09.1 \(q9\) needs two or more wrong answers"),
        ({"wrong": {TRIPLE: "x", "q9.check(1)": " "}}, "each with part of the message"),
        ({"wrong": {TRIPLE: "x", "q8.check(1)": "y"}}, "a wrong answer .* calls q8.check, not q9.check"),
        ({"wrong": {TRIPLE: "x", "double = 3": "y"}}, "a wrong answer .* must end in <name>.check"),
        ({"wrong": {TRIPLE: "x", "q9.check(": "y"}}, "a wrong answer .* is not Python: "),
        ({"hints": ()}, "needs a hint"),
        ({"hints": ("",)}, "needs a hint"),
        ({"solution": "double = 3\n"}, r"the solution of exercise 09.1 must end in <name>.check\(…\)"),
        ({"solution": "q9.check(double)\nprint(3)\n"}, "must end in <name>.check"),
        ({"solution": ""}, "must end in <name>.check"),
        ({"question": " "}, "needs a question"),
        ({"why": ""}, "needs a question, and a why"),
        ({"difficulty": "brutal"}, "needs a difficulty of"),
        ({"minutes": 0}, "minutes above 0"),
    ],
)
def test_a_declaration_with_a_gap_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        sample(**changes)
