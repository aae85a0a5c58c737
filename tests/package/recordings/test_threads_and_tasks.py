"""Several threads, or tasks of asyncio, run one model: each event knows whose it is, and each has a tree of its own."""

import asyncio
import pickle
import re
import sys
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookscope.recordings.record import Event, record
from hookscope.recordings.timeline import draw
from tests.shared import PATIENCE
from tests.shared.awkward_models import Do, Net
from tests.shared.recording_helpers import make_nested, make_ones, record_pass

FORWARD = ("forward_pre", "forward")


def run(*jobs, names=("one", "two")):
    """Run functions in threads of their own; what they raise is raised here."""
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), name=name) for job, name in zip(jobs, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for error in errors:
        raise error


def shown(recording):
    """The numbers of the events in the call tree, in order."""
    return sorted(int(index) for index in re.findall(r"\[(\d+)\]", repr(recording.call_tree())))


def trees(recording):
    """The lines of the tree of each thread, without what is counted across threads."""
    found = {}
    for line in repr(recording.call_tree()).splitlines():
        if line[0] not in "└├│ ":
            lines = found[line] = []
        else:
            lines.append(re.sub(r" #\d+|\[\d+\] ", "", line[4:]))
    return found


def crossing():
    """A recording of two threads that are in the same layer at once; the one that came in first leaves it last."""
    came, left = threading.Barrier(2), threading.Event()

    def wait(x):
        came.wait(PATIENCE)
        if threading.current_thread().name == "one":
            assert left.wait(PATIENCE)
        return x

    model = nn.Sequential(nn.Sequential(Do(wait), nn.ReLU()), nn.Identity())

    def second():
        model(torch.ones(1, 4))
        left.set()

    with record(model, kinds=FORWARD) as recording:
        run(lambda: model(torch.ones(1, 4)), second)
    return recording


def test_threads_that_cross_have_a_tree_each():
    recording = crossing()
    model = nn.Sequential(nn.Sequential(Do(lambda x: x), nn.ReLU()), nn.Identity())
    with record(model, kinds=FORWARD) as alone:
        model(torch.ones(1, 4))
    plain = [re.sub(r"\[\d+\] ", "", line) for line in repr(alone.call_tree()).splitlines()]
    assert set(trees(recording)) == {"one", "two"}
    for lines in trees(recording).values():
        assert lines == plain
    assert shown(recording) == list(range(1, 21))
    calls = {(e.by, e.name): set() for e in recording.events}
    for event in recording.events:
        calls[event.by, event.name].add(event.call)
    assert all(len(numbers) == 1 for numbers in calls.values()), "both hooks of a call have its number"
    assert {event.call for event in recording.events} == {1, 2}


def test_the_table_says_whose_an_event_is_only_where_there_are_several():
    recording = crossing()
    assert {row["thread or task"] for row in recording.to_pandas().to_dict("records")} == {"one", "two"}
    assert "thread or task" in repr(recording)
    assert "thread or task" in recording._repr_mimebundle_()["text/html"]
    assert recording.picture().rows[0]["thread or task"] in ("one", "two")
    read = pickle.loads(pickle.dumps(recording))
    assert [event.by for event in read.events] == [event.by for event in recording.events]
    here = record_pass()
    there = []
    run(lambda: there.append(record_pass()), names=["elsewhere"])
    assert {event.by for event in there[0].events} == {"elsewhere"}
    assert there[0].events == here.events, "who ran it is no difference"
    assert repr(there[0]) == repr(here)
    assert repr(there[0].call_tree()) == repr(here.call_tree())


def test_the_timeline_leads_through_each_thread_by_itself():
    def picture(*names):
        layers = ("a", "a", "a", "b")
        events = [
            Event(index, "forward", layer, "ReLU", 1, "forward", None, by=by)
            for index, (layer, by) in enumerate(zip(layers, names, strict=True), 1)
        ]
        return draw(events, "", ()).png

    # A line through three events of one layer, and none to the other layer, however many threads there are.
    assert picture("one", "one", "one", "two") == picture("one", "three", "one", "two")
    assert picture("one", "one", "one", "two") != picture("one", "one", "one", "one")


def test_threads_of_one_name_are_told_apart():
    model, one_by_one = nn.ReLU(), threading.Barrier(2)
    with record(model, kinds=FORWARD) as recording:
        run(*[lambda: (one_by_one.wait(PATIENCE), model(torch.ones(1)))] * 2, names=("worker", "worker"))
    assert set(trees(recording)) == {"worker", "worker (2)"}
    assert len(set(map(tuple, trees(recording).values()))) == 1


def test_a_call_has_one_number_also_where_threads_cross_before_it():
    model, inside = nn.Sequential(nn.ReLU()), threading.Barrier(2)

    def wait(module, args):
        inside.wait(PATIENCE)

    model[0].register_forward_pre_hook(wait)
    model[0].register_forward_pre_hook(lambda module, args: wait(module, args))
    with record(model, kinds=FORWARD) as recording:
        run(*[lambda: model(torch.ones(1))] * 2)
    for by in ("one", "two"):
        assert len({event.call for event in recording.events if event.by == by and event.name == "0"}) == 1
    for lines in trees(recording).values():
        assert sum("0: ReLU" in line for line in lines) == 1
    assert shown(recording) == [event.index for event in recording.events]


def test_tasks_have_a_tree_each():
    net = nn.Sequential(nn.ReLU())

    async def twice():
        net(torch.ones(1))
        await asyncio.sleep(0)  # here the other task runs
        net(torch.ones(1))

    async def both():
        await asyncio.gather(*(asyncio.create_task(twice(), name=name) for name in ("this", "that")))

    with record(net, kinds=FORWARD) as recording:
        asyncio.run(both())
    assert [event.by for event in recording.events] == (["this"] * 4 + ["that"] * 4) * 2
    assert list(trees(recording)) == ["this", "that"]
    assert trees(recording)["this"] == trees(recording)["that"]
    assert shown(recording) == list(range(1, 17))


def test_backward_belongs_to_the_thread_that_calls_it():
    model, between = make_nested(), threading.Barrier(2)

    def train():
        loss = model(make_ones(1, 4)).sum()
        between.wait(PATIENCE)
        loss.backward()

    with record(model, kinds=[*FORWARD, "full_backward_pre", "full_backward"]) as recording:
        run(train, train)
    assert len(set(map(tuple, trees(recording).values()))) == 1
    assert shown(recording) == list(range(1, 41))
    for by in ("one", "two"):
        assert sum(event.by == by and event.phase == "backward" for event in recording.events) == 10


def test_a_gradient_that_one_thread_fills_is_not_that_of_the_next_to_log():
    model, other = nn.Identity(), nn.ReLU()
    net = nn.ModuleList([model, other])

    def train(recording):
        y = recording.watch(make_ones(2) * 3, "y", retain_grad=True)
        y.grad_fn.register_prehook(lambda _: run(lambda: other(torch.ones(1)), names=["two"]))
        y.sum().backward()

    with record(net, kinds=FORWARD) as recording:
        run(lambda: train(recording), names=["one"])
    assert [(event.kind, event.by) for event in recording.events] == [
        ("tensor", "one"),
        ("retain_grad", "one"),
        ("forward_pre", "two"),
        ("forward", "two"),
    ]


class Deep(torch.autograd.Function):
    """Runs a backward pass inside of its own, so deep that torch takes a thread of its own for it."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            if ctx.depth:
                Deep.apply(make_ones(1), ctx.depth - 1).sum().backward()
            else:
                ran_on.append(threading.current_thread().name)
                identity(make_ones(1)).sum().backward()
        return grad, None


identity, ran_on = nn.Identity(), []


def test_what_torch_runs_on_a_thread_of_its_own_belongs_to_who_waits_for_it():
    def train():
        identity(make_ones(1))
        Deep.apply(make_ones(1), 100).sum().backward()

    with record(identity) as recording:
        run(train, lambda: identity(make_ones(1)))
    assert ran_on[0] not in ("one", "two")
    ran = [event.by for event in recording.events]
    assert (ran.count("one"), ran.count("two")) == (6, 2)
    with record(identity) as recording:
        train()
    assert {event.by for event in recording.events} == {threading.current_thread().name}
    assert "thread or task" not in repr(recording)


def test_threads_in_a_hurry_lose_nothing():
    model, interval = nn.ReLU(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with record(model, kinds=FORWARD) as recording:
            names = [str(number) for number in range(4)]
            run(*[lambda: [model(torch.ones(1)) for _ in range(60)]] * 4, names=names)
    finally:
        sys.setswitchinterval(interval)
    assert [event.index for event in recording.events] == list(range(1, 481))
    for kind in FORWARD:
        assert sorted(event.call for event in recording.events if event.kind == kind) == list(range(1, 241))


# One thread, and orders in which a call is not one piece.


def grad_inside(self, x):
    (grad,) = torch.autograd.grad(self.fc(x).sum(), x)
    return self.view(grad) + self.fc(x)


def caught(self, x):
    try:
        self.bad(x)
    except RuntimeError:
        return self.fc(x)


def again(self, x):
    return self(x[:-1]) if len(x) > 1 else self.fc(x)


ORDERS = {
    "backward inside forward": grad_inside,
    "an error that is caught": caught,
    "a call inside itself": again,
    "a checkpoint": lambda self, x: checkpoint(self.fc, x, use_reentrant=False),
    "a reentrant checkpoint": lambda self, x: checkpoint(self.fc, x, use_reentrant=True),
    "a layer made in forward": lambda self, x: nn.Sequential(nn.ReLU())(self.fc(x)),
}


@pytest.mark.filterwarnings("ignore")  # of full backward hooks
@pytest.mark.parametrize("place", ["forward_pre", "forward", "full_backward", ""])
@pytest.mark.parametrize("order", ORDERS)
def test_no_event_is_lost_from_the_tree(order, place):
    layers = {"fc": nn.Linear(4, 4), "bad": nn.Linear(9, 9), "view": nn.Identity()}
    model = nn.Sequential(Net(ORDERS[order], **layers))
    if place:  # a hook that calls a layer itself, and so several others

        def calls(*_):
            with torch.enable_grad():
                model[0].view(nn.Sequential(model[0].fc)(make_ones(1, 4)))

        getattr(model[0], f"register_{place}_hook")(calls)
    with record(model) as recording:
        model(make_ones(2, 4)).sum().backward()
    assert len(recording.events) > 12
    assert shown(recording) == [event.index for event in recording.events]
