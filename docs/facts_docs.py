"""What the pages say beyond their code, run."""

import re
from pathlib import Path
from pkgutil import resolve_name
from warnings import catch_warnings, simplefilter

import pytest
import torch
from torch import nn

from hookscope import capture, record, samples
from hookscope_course.chapters import ch21_cloakroom


def test_results_with_hooks_are_the_same_but_for_these(says):
    says(
        "a sample that is all padding gets numbers instead of NaN.",
        "If you pass the same tensor twice, a layer can no longer tell that it is the same.",
        "An input that the layer does not use gets a gradient of zeros instead of `None`.",
    )
    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    padded, x = torch.tensor([[False] * 6, [True] * 6]), torch.randn(2, 6, 32)
    with torch.no_grad(), catch_warnings():
        simplefilter("ignore")
        assert encoder(x, src_key_padding_mask=padded)[1].isnan().all()
        with capture(encoder):
            assert not encoder(x, src_key_padding_mask=padded)[1].isnan().any()

    class Same(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return 2 * q if q is k else 3 * q

    class First(nn.Module):
        def forward(self, a: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return 2 * a

    same, first, one = Same(), First(), torch.ones(1, requires_grad=True)
    unused, watched = (torch.ones(1, requires_grad=True) for _ in range(2))
    assert same(one, one) == 2
    first(one, unused).backward()
    assert unused.grad is None
    with record(nn.ModuleList([same, first])):
        assert same(one, one) == 3
        first(one, watched).backward()
    assert watched.grad == 0
    with record(same, kinds=("forward_pre", "forward")):
        assert same(one, one) == 2


def test_four_trained_networks_come_with_it(says):
    says("four small trained networks come with it.")
    folders = [Path(module.__file__).parent for module in (samples, ch21_cloakroom)]
    found = [path.stem for folder in folders for path in folder.glob("*.safetensors")]
    assert len([name for name in found if name.endswith(("cnn", "lm", "cloakroom"))]) == 4


def test_a_full_backward_hook_makes_views_of_what_requires_a_gradient(says):
    says(
        "If an input requires a gradient, PyTorch passes views of the inputs to the layer. If an output requires a "
        "gradient, PyTorch returns views of the outputs.",
        '"Output 0 of BackwardHookFunction is a view and is being modified inplace".',
    )
    plain, watched = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4, requires_grad=True)
    cases = [(True, plain, [False, False]), (False, plain, [False, True]), (True, watched, [True, True])]
    for frozen, x, views in cases:
        conv, inputs = nn.Conv2d(1, 2, 3).requires_grad_(not frozen), []
        conv.register_full_backward_hook(lambda *_: None)
        conv.register_forward_hook(lambda _, args, output, inputs=inputs: inputs.extend(args))
        output = conv(x)
        assert [inputs[0]._is_view(), output._is_view()] == views
    with pytest.raises(RuntimeError, match="Output 0 of BackwardHookFunction is a view and is being modified inplace"):
        conv(plain.requires_grad_()).relu_()


def test_a_compiled_model_finds_a_hook_when_it_compiles_again(says):
    says("They run only after torch compiles again, for example because the batch has a different size.")
    net, calls = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []
    fast = torch.compile(net, backend="eager")
    fast(torch.ones(1, 2))
    net[0].register_forward_hook(lambda *_: calls.append(1))
    fast(torch.ones(1, 2))
    assert not calls
    fast(torch.ones(5, 2))
    assert calls


def test_a_traced_module_calls_hooks_on_itself_only(says):
    says(
        "A traced module calls the forward hooks on itself, but it calls none on the modules inside it.",
        "A scripted module refuses forward hooks.",
    )
    with catch_warnings():
        simplefilter("ignore")
        traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))
        scripted = torch.jit.script(nn.ReLU())
    calls: list[str] = []
    for name, module in traced.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
    traced(torch.ones(1, 2))
    assert calls == [""]
    with pytest.raises(RuntimeError):
        scripted.register_forward_hook(lambda *_: None)


def test_which_full_backward_hooks_autograd_grad_fires(says):
    says(
        "If an input of a layer requires grad, it fires `full_backward` only if it computes the gradient of such an",
        "If a layer returns neither a tensor nor a tuple, `full_backward` never fires.",
    )
    layer, x, calls = nn.Bilinear(2, 2, 2), [torch.ones(1, 2, requires_grad=True) for _ in range(2)], []
    layer.register_full_backward_hook(lambda *_: calls.append(1))
    torch.autograd.grad(layer(*x).sum(), [layer.weight])
    assert not calls
    torch.autograd.grad(layer(*x).sum(), [x[1]])
    assert calls == [1]
    lstm = nn.LSTM(2, 2)  # a tuple with a tuple in it
    lstm.register_full_backward_hook(lambda *_: calls.append(2))
    lstm(x[0])[0].sum().backward()
    assert calls == [1, 2]


def test_every_name_on_the_pages_exists():
    made_up = ("hookscope_course.figures.counter", "hookscope_course.lessons.02")
    for page in Path(__file__).parent.rglob("*.md"):
        for name in re.findall(r"\bhookscope(?:_course)?(?:\.[a-zA-Z_]\w*)+", page.read_text(encoding="utf-8")):
            if not name.startswith((*made_up, "hookscope.github")):  # in an address
                resolve_name(name)


def test_batch_norm_in_train_gives_the_same_values_for_the_same_batch(says):
    says("and in batch norm a sample depends on its batch.")
    x, norm = torch.tensor([[1.0], [2.0], [4.0]]), nn.BatchNorm1d(1).train()
    assert norm(x).equal(norm(x))
    assert not norm(x)[:2].allclose(norm(x[:2]))
