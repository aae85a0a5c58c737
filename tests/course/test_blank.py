"""Blanks: they never raise, and whatever still has one in it is not attempted."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from hookscope_course import Wrong, ____
from tests.shared.exercises import ask_check, check_outcome, make_exercise, run_cell

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
    feedback = make_exercise(check=lambda answer: pytest.fail("a blank must not be run")).check(answer)
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
    assert check_outcome(answer) == "right"


def test_no_answer_is_not_attempted():
    assert make_exercise().check().outcome == "not attempted"


def test_a_blank_in_the_cell_is_seen_though_its_value_is_not():
    code = "losses = [0.5, 0.25]\nanswer = losses[____]\nq9.check(answer)"
    assert ask_check(code, check=lambda answer: None).outcome == "not attempted"
    assert ask_check(code.replace("____", "0"), check=lambda answer: None).outcome == "right"
    unused = "from hookscope_course import ____  # replace ____ below\nq9.check(0)"
    assert ask_check(unused, check=lambda answer: None).outcome == "right"


def test_a_blank_met_while_checking_is_not_attempted():
    names = {"q9": make_exercise(lambda answer: answer(nn.Identity(), (1,))), "____": ____}
    exec("def helper(value):\n    return ____ * value\n", names)
    feedback = run_cell("def double(module, args):\n    return helper(2)\nq9.check(double)", names)
    assert feedback.outcome == "not attempted"
    exec("def helper(value):\n    return value\n", names)
    names["q9"] = make_exercise(lambda answer: None if answer(nn.Identity(), (1,)) == 2 else Wrong("no"))
    assert run_cell("q9.check(double)", names).outcome == "right"
