"""What a learner meets: feedback in words, nothing left behind, staged hints, the solution."""

import warnings

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

from hookscope_course import Feedback, Wrong, ____
from hookscope_course.practice import Card, allows
from tests.shared.exercises import (
    NO_RETURN,
    RIGHT,
    TRIPLE,
    ask_check,
    list_global_hooks,
    make_exercise,
    make_sample,
    run_cell,
)

# ---- right and wrong


def test_outcomes_and_their_words():
    right = make_exercise(why="because `forward` got it.").check(1)
    assert (right.outcome, right.message) == ("right", "because `forward` got it.")
    assert repr(right) == "Right. Because `forward` got it."
    for check in (lambda answer: Wrong("it was 3"), lambda answer: (_ for _ in ()).throw(Wrong("it was 3"))):
        wrong = make_exercise(check).check(1)
        assert isinstance(wrong, Feedback)
        assert (wrong.outcome, wrong.message) == ("wrong", "it was 3")
        assert repr(wrong) == "Not yet. It was 3."


@pytest.mark.parametrize("message", ["y = 5 · x", "x is 3", "grad_input is a pair", "x.grad is 3", "args[0]"])
def test_code_at_the_beginning_of_a_message_keeps_its_case(message):
    assert repr(make_exercise(lambda answer: Wrong(message)).check(1)) == f"Not yet. {message}."
    assert repr(make_exercise(lambda answer: Wrong(f"a {message}")).check(1)) == f"Not yet. A {message}."


@pytest.mark.parametrize(
    "message",
    ["Is it 3?", "So:\n- one\n- two", "Use\nA: this", "Write\n```python\nx = 1\n```", "It is 3 …", "It is 3. (So.)"],
)
def test_only_a_sentence_without_an_end_gets_a_full_stop(message):
    assert repr(make_exercise(lambda answer: Wrong(message)).check(1)) == f"Not yet. {message}"


def test_feedback_as_html_is_escaped_and_not_told_by_colour_alone():
    bundle = make_exercise(lambda answer: Wrong("`args` is <img src=x onerror=alert(1)>\nnot 3"))
    bundle = bundle.check(1)._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == "Not yet. `args` is <img src=x onerror=alert(1)>\nnot 3."
    page = bundle["text/html"]
    assert 'role="status"' in page
    assert "<img" not in page
    assert "<code>args</code> is &lt;img src=x onerror=alert(1)&gt;<br>not 3" in page
    signs = {}
    for kind, answer in {"right": 1, "wrong": 2, "not attempted": ____}.items():
        feedback = make_exercise(lambda answer: None if answer == 1 else Wrong("no")).check(answer)
        assert feedback.outcome == kind
        page = feedback._repr_mimebundle_()["text/html"]
        signs[kind] = page.split('aria-hidden="true">')[1][0], page.split("border-left: 4px ")[1].split()[0]
        assert "color:" not in page  # the text keeps the colours of the theme
    assert len({sign for sign, _ in signs.values()}) == len({border for _, border in signs.values()}) == 3


def test_wrapped_lines_are_one_sentence_and_code_items_and_paragraphs_stay_apart():
    hint = """
Write a hook
that returns `2 *
output`. It may
    be called twice.
```python
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
    q9 = make_exercise(why="torch calls\nit.", hints=(hint, "Look\nat it.", "A:\n```\nx\ny\n```"))
    page = q9.hint()._repr_mimebundle_()["text/html"]
    assert "Write a hook that returns <code>2 * output</code>. It may be called twice.<pre><code>def" in page
    assert (
        "output):\n    x = 1\n    # A: no item</code></pre>Order these.<br><br>Then say<br>A: why it is so<br>" in page
    )
    assert "<br>- or not<br>1. or when</div>" in page
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
        (
            "def f(module):\n    pass\nq9.check(f)",
            "arguments that it was called with (TypeError: f() takes 1 positional",
        ),
        ("q9.check(len)", "arguments that it was called with (TypeError: len() takes exactly one argument"),
        (
            "class E(Exception):\n    def __str__(self):\n        raise ValueError\n"
            "def f(module, args):\n    raise E\nq9.check(f)",
            "line 2 of your f (`raise E`) raised E",
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
    feedback = ask_check(code)
    assert feedback.outcome == "wrong"
    assert message in feedback.message


def test_an_error_in_a_backward_hook_names_the_learner_s_line():
    def check(answer):
        module = nn.Linear(2, 2)
        module.register_full_backward_hook(answer)
        module(torch.ones(1, 2, requires_grad=True)).sum().backward()

    feedback = ask_check("def hook(module, gi, go):\n    return gi[9]\nq9.check(hook)", check)
    assert feedback.message.startswith("line 2 of your hook (`return gi[9]`) raised IndexError: tuple index")


def test_the_quoted_line_is_never_another_cell_s():
    names = {"__name__": "__main__", "q9": make_exercise(lambda answer: answer(1, 2))}
    exec(compile("def double(module, args):\n    return args.nope\n", "<cell>", "exec"), names)
    for later in ("first = 1\nsecond = 2\nq9.check(double)", "q9.check(double)", "double\nq9.check(double)"):
        feedback = run_cell(later, names)
        assert feedback.message.startswith("line 2 of your double raised AttributeError")


def test_a_keyboard_interrupt_passes_through_and_hooks_still_come_off():
    def interrupt(answer):
        nn.modules.module.register_module_forward_hook(lambda *_: None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_exercise(interrupt).check(1)
    assert not list_global_hooks()


def test_a_wrong_number_of_answers_is_told():
    feedback = make_exercise().check(1, 2)
    assert (feedback.outcome, feedback.message) == (
        "wrong",
        "call this check as `q9.check(double)`; it got 2 answers",
    )
    both = "q9.check(1, 2)"
    pair = make_exercise(lambda first, second: None, solution=both)
    assert pair.check(1, 2).outcome == "right"


def test_a_check_that_answers_neither_none_nor_wrong_is_refused():
    with pytest.raises(TypeError, match=r"the check of exercise 09.1 returned True, not None or Wrong"):
        make_exercise(lambda answer: True).check(1)


def test_what_the_learner_prints_is_shown_with_the_feedback(capsys):
    feedback = ask_check(
        "def f(module, args):\n    print('<b>', args)\nq9.check(f)", warn := (lambda answer: answer(1, 2))
    )
    assert feedback.printed == "<b> 2"
    assert repr(feedback).endswith("\nPrinted while checking:\n<b> 2")
    assert "Printed while checking:\n&lt;b&gt; 2</pre>" in feedback._repr_mimebundle_()["text/html"]
    assert ask_check("def f(module, args):\n    print(1)\n    1 / 0\nq9.check(f)", warn).printed == "1"
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
        check = allows("global hooks")(lambda answer: answer(1, 2))
        feedback = ask_check(code.format(end=end), check, **names)
        assert feedback.outcome == expected, feedback
        assert not model[0]._forward_hooks
        assert not model[0].weight._backward_hooks
        assert not other._forward_pre_hooks
        assert not list_global_hooks()
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
    assert make_exercise(check).check(1).outcome == "right"
    assert torch.is_grad_enabled()
    assert warnings.filters == filters
    second = torch.rand(1)
    with torch.inference_mode():
        make_exercise(check).check(1)
    with torch.no_grad():
        make_exercise(check).check(1)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.cat([first, second, torch.rand(1)]), expected)
    assert len(set(drawn)) == 1
    assert drawn[0][1:] == (True, False)


def test_warnings_stay_out_of_the_page(recwarn):
    def check(answer):
        warnings.warn("from the check", UserWarning, stacklevel=1)

    assert make_exercise(check).check(1).outcome == "right"
    assert not recwarn.list


# ---- hints, solution, the exercise itself


def test_hints_come_one_by_one_and_the_last_one_says_so():
    q9 = make_sample()
    assert repr(q9.hint()) == "Hint 1 of 2. Look at what the pre-hook returns."
    assert repr(q9.hint()) == "Hint 2 of 2. Return a tuple: `(2 * args[0],)`."
    for _ in range(2):
        assert repr(q9.hint()) == (
            "Hint 2 of 2, again. Return a tuple: `(2 * args[0],)`.\n"
            "There is no further hint; `q9.solution()` shows the solution."
        )
    assert "<code>(2 * args[0],)</code>" in q9.hint()._repr_mimebundle_()["text/html"]
    assert repr(make_sample(hints=("one",)).hint()) == "Hint 1 of 1. One."


def test_the_solution_is_its_code():
    solution = make_sample().solution()
    bundle = solution._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/plain": RIGHT.rstrip(), "text/markdown": f"```python\n{RIGHT}```"}
    assert solution.code == RIGHT
    fenced = make_sample(solution="text = '```'\nq9.check(text)\n").solution()._repr_mimebundle_()["text/markdown"]
    assert fenced.startswith("````python\n")
    assert fenced.endswith("\n````")


def test_a_hint_and_the_solution_of_one_cell_are_both_shown():
    shell = InteractiveShell.instance()
    try:
        shell.user_ns["q9"] = make_sample()
        both = shell.run_cell("q9.hint()\nq9.solution()", store_history=True).result
        assert repr(both) == f"Hint 1 of 2. Look at what the pre-hook returns.\n\n{RIGHT.rstrip()}"
        shown = both._repr_mimebundle_()["text/markdown"]
        assert shown == f"**Hint 1 of 2.** Look at what the pre-hook returns.\n\n```python\n{RIGHT}```"
        alone = shell.run_cell("q9.solution()", store_history=True).result
        assert repr(alone) == RIGHT.rstrip()
    finally:
        InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("its *input* is `x`", "its <em>input</em> is <code>x</code>"),
        ("**not** *so*", "<strong>not</strong> <em>so</em>"),
        ("`2 * 3 * 4` is 2 * 3 * 4", "<code>2 * 3 * 4</code> is 2 * 3 * 4"),
        ("hook(*args, **kwargs) and f(*args)", "hook(*args, **kwargs) and f(*args)"),
    ],
)
def test_markdown_in_a_message_is_drawn(text, shown):
    assert shown in Card("So:", text)._repr_mimebundle_()["text/html"]


def test_an_exercise_shows_its_question_and_what_can_be_called():
    shown = (
        "**Exercise 09.1 · easy · 3 minutes**\n\nWrite a pre-hook `double` that doubles the input.\n\n"
        "`q9.check(double)` checks your answer, `q9.hint()` gives a hint (2), `q9.solution()` shows the solution."
    )
    assert repr(make_sample()) == shown
    assert make_sample()._repr_mimebundle_() == {"text/plain": shown, "text/markdown": shown}


# ---- a bug to fix, as it was found


def test_an_untouched_bug_is_not_told_at_the_first_run():
    q9 = make_sample(is_bug=True, starter=NO_RETURN)
    names = {"q9": q9}
    first, second, changed = run_cell(NO_RETURN, names), run_cell(NO_RETURN, names), run_cell(TRIPLE, names)
    assert (first.outcome, second.outcome, changed.outcome) == ("not attempted", "not attempted", "wrong")
    assert repr(first) == (
        "Not attempted: this is the code as you found it. Find what is wrong with it and change it; `q9.hint()` "
        "helps. If you run it once more, you are told what goes wrong."
    )
    assert second.message == (
        "this is still the code as you found it. What goes wrong in it: [1, 2] arrived as [1, 2], not as [2, 4]"
    )
    assert run_cell(RIGHT, names).outcome == "right"
