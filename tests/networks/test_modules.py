"""What moves is what a module says its parameters are, and a loss is that of the module."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import refgeo as rg

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn


def encoder(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).to(dtype)


def data(dtype=torch.float64):
    torch.manual_seed(1)
    return torch.randn(2, 4, 5, 8, dtype=dtype)


def squares(x, y):
    return lambda call: (call(x) - y).square().mean()


FROZEN = ["norm*"]


def sharpness(loss, module, frozen=FROZEN, **settings):
    network = rg.networks.read(module, "clip", heads=2)
    evaluate = rg.adapters.torch_value_and_grad(module, network, loss, frozen=frozen, dtype=np.float64)
    return rg.worst_case_sharpness(
        evaluate, network.blocks, network.metric("inv", frozen=frozen), rho=0.02, n_restarts=1, **settings
    )


# Buffers --------------------------------------------------------------------------------------------------------------


class Turning(nn.Module):
    """Multiplies by a table that is complex, which is kept as a buffer, a parameter or an attribute."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.inside = keep, encoder(torch.float32)
        table = torch.polar(torch.ones(4), torch.linspace(0.1, 2.0, 4))
        if keep == "parameter":
            self.table = nn.Parameter(table, requires_grad=False)
        elif keep == "attribute":
            self.table = table
        else:
            self.register_buffer("table", table, persistent=keep == "persistent buffer")

    def forward(self, x):
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2)) * self.table.to(torch.complex128)
        return self.inside(torch.view_as_real(turned).flatten(-2).to(x.dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keep", ["attribute", "buffer", "persistent buffer", "parameter"])
def test_complex_tables_stay_complex(keep, dtype):
    module, (x, y) = Turning(keep), data(torch.float32)
    expected = squares(x, y)(module).item()
    kind = getattr(torch, np.dtype(dtype).name)
    for source in (module, module.state_dict()):
        network = rg.networks.read(source, "clip", heads=2)
        evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x.to(kind), y.to(kind)), dtype=dtype)
        assert evaluate(network.blocks)[0] == pytest.approx(expected, rel=1e-5)


class Buffered(nn.Module):
    def __init__(self, persistent=True):
        super().__init__()
        self.layer = encoder()
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 8, dtype=torch.float64), persistent=persistent)

    def forward(self, x):
        return self.layer(x) * self.scale


@pytest.mark.parametrize("persistent", [True, False])
def test_a_modules_buffers_are_no_parameters(persistent):
    module, (x, y) = Buffered(persistent), data()
    network = rg.networks.read(module, "clip", heads=2)
    assert set(network.shapes) == {name for name, _ in module.named_parameters()}
    assert network.summary().parameters == sum(p.numel() for p in module.parameters())
    assert not any("Taken for parameters" in one for one in network.summary().remarks)
    assert set(network.state_dict()) == set(module.state_dict())
    evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x, y), dtype=np.float64)
    parameters = list(module.parameters())
    grads = torch.autograd.grad(squares(x, y)(module), parameters)
    slope = sum((w * g).square().sum() for w, g in zip(parameters, grads, strict=True)).sqrt().item()
    found = rg.adaptive_sharpness(evaluate, network.blocks, 1e-7, n_restarts=1)
    assert found.value == pytest.approx(1e-7 * slope, rel=1e-6)


def test_a_state_dict_does_not_tell_and_it_is_said():
    module, (x, y) = Buffered(), data()
    network = rg.networks.read(module.state_dict(), "clip", heads=2)
    assert "scale" in network.blocks
    (said,) = (one for one in network.summary().remarks if "Taken for parameters" in one)
    assert f"the {len(network.shapes)} tensors" in said
    with pytest.raises(ValueError, match=r"network: 'scale' is to move, and the module has no parameter of this name"):
        rg.adapters.torch_value_and_grad(module, network, squares(x, y))
    evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x, y), frozen=["scale"], dtype=np.float64)
    assert evaluate(network.blocks)[0] == pytest.approx(squares(x, y)(module).item())


def test_tied_parameters_of_a_module_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = encoder(), nn.Linear(8, 16, bias=False).double()
            self.layer.linear1.weight = self.head.weight

        def forward(self, x):
            return self.head(self.layer(x))

    module, (x, _) = Tied(), data()
    network = rg.networks.read(module, "clip", heads=2)
    assert "head.weight" not in network.blocks
    evaluate = rg.adapters.torch_value_and_grad(module, network, lambda call: call(x).square().mean(), dtype=np.float64)
    rg.check_gradient(evaluate, network.blocks)


def test_factors_that_are_one_parameter_are_no_pair():
    parts = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("query", "key", "value", "out")})
    module, layout = nn.ModuleList([parts]), rg.networks.own_layout("*", "query", "key", "value", "out")
    assert len(rg.networks.read(module, layout, heads=2).blocks) == 3
    parts["key"].weight = parts["query"].weight
    with pytest.raises(rg.networks.LayoutError, match=r"0\.key\.weight and 0\.query\.weight are one"):
        rg.networks.read(module, layout, heads=2)


# The loss -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.set_grad_enabled(False)]
)
def test_gradients_are_taken_whatever_surrounds(context):
    module, (x, y) = encoder(), data()
    expected = sharpness(squares(x, y), module).value
    with context():
        assert sharpness(squares(x, y), module).value == pytest.approx(expected, rel=1e-12)
    network = rg.networks.read(module, "clip", heads=2)
    evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x, y), dtype=np.float64)
    with context():  # where the copy is not made yet, and then where it is
        values = [evaluate(network.blocks)[0] for _ in range(2)]
    assert values == pytest.approx([squares(x, y)(module).item()] * 2)


WRONG = {
    "module": (lambda m, x: lambda call: m(x).square().mean(), "module's own parameters"),
    "a part of it": (lambda m, x: lambda call: call(x).mean() + m.linear1(x).square().mean(), "own parameters"),
    "penalty": (
        lambda m, x: lambda call: call(x).mean() + sum(p.square().sum() for p in m.parameters()), "own parameters",
    ),
    "float": (lambda m, x: lambda call: call(x).mean().item(), r"not .item\(\) of it"),
    "detached": (lambda m, x: lambda call: call(x).mean().detach(), "has no gradient"),
    "no_grad": (lambda m, x: lambda call: torch.no_grad()(call)(x).mean(), "has no gradient"),
    "tuple": (lambda m, x: lambda call: (call(x).mean(), 1), "got tuple"),
    "None": (lambda m, x: lambda call: None, "got NoneType"),
    "not reduced": (lambda m, x: lambda call: call(x).square().mean((1, 2)), r"got shape \(4,\)"),
    "elsewhere": (lambda m, x: lambda call: x.square().mean(), "has no gradient"),
    "complex": (lambda m, x: lambda call: call(x).mean() * 1j, "complex"),
}  # fmt: skip


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_is_none_says_so(name, trainable):
    module, (x, _) = encoder().requires_grad_(trainable), data()
    make, said = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=f"^loss: .*{said}"):
        sharpness(make(module, x), module)
    assert all(p.requires_grad == trainable for p in module.parameters())


def test_one_number_in_an_array_is_a_loss_and_a_frozen_teacher_is_allowed():
    module, (x, y) = encoder(), data()
    expected = sharpness(squares(x, y), module).value
    assert sharpness(lambda call: squares(x, y)(call).reshape(1), module).value == pytest.approx(expected)
    with torch.no_grad():
        taught = module(x) + y

    def distilled(call):
        with torch.no_grad():
            target = module(x) + y
        return (call(x) - target).square().mean()

    assert sharpness(distilled, module).value == pytest.approx(sharpness(squares(x, taught), module).value)


class Held(nn.Module):
    """A layer that is held fast inside of the forward pass, and a head."""

    def __init__(self, held):
        super().__init__()
        self.held, self.layer = held, encoder()
        torch.manual_seed(2)
        self.head = nn.Linear(8, 8).double()

    def forward(self, z):
        with torch.set_grad_enabled(not self.held):
            h = self.layer(z)
        return self.head(h)


@pytest.mark.parametrize("rho", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("head", [True, False])
def test_gradients_that_are_off_inside_are_found(rho, dtype, head):
    """In all that moves, or in a part of it."""
    module = Held(True)
    network, kind = rg.networks.read(module, "clip", heads=2), getattr(torch, np.dtype(dtype).name)
    frozen = ["*norm*"] if head else ["*norm*", "head*"]
    x, y = data(kind)
    evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x, y), frozen=frozen, dtype=dtype)
    with pytest.raises(ValueError, match=r"gradient is zero|has no gradient"):
        rg.worst_case_sharpness(evaluate, network.blocks, network.metric("inv", frozen=frozen), rho=rho)


def test_every_batch_is_asked_whether_it_uses_the_module_itself():
    module, (x, y) = encoder(), data()

    def loss(call, penalised):
        value = squares(x, y)(call)
        return value + module.linear1.weight.square().sum() if penalised else value

    network = rg.networks.read(module, "clip", heads=2)
    for batches in ([False, True], [True, False]):
        evaluate = rg.adapters.torch_value_and_grad(module, network, loss, frozen=FROZEN, dtype=np.float64)
        with pytest.raises(ValueError, match="own parameters"):
            rg.worst_case_sharpness(
                evaluate, network.blocks, network.metric("inv", frozen=FROZEN), 0.02, batches=batches, n_restarts=1
            )


# Copies ---------------------------------------------------------------------------------------------------------------


class Keeping(nn.Module):
    """A module that keeps something."""

    def __init__(self, thing):
        super().__init__()
        self.layer = encoder()
        self.layer.kept = thing

    def forward(self, x):
        return self.layer(x)


def generator():
    yield 1


OBSTACLES = {
    "an output": lambda: encoder()(data()[0]), "a lock": threading.Lock, "a generator": generator,
    "a file": partial(Path(__file__).open, encoding="utf-8"), "a list of outputs": lambda: [encoder()(data()[0])],
}  # fmt: skip


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_keeps_a_module_from_being_copied_is_named(name):
    thing = OBSTACLES[name]()
    module, (x, y) = Keeping(thing), data()
    with pytest.raises(
        TypeError, match=r"module: it is copied for every thread, but its layer\.kept, a \w+, cannot be"
    ):
        sharpness(squares(x, y), module, frozen=["*norm*"])
    if name == "a file":
        thing.close()


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused():
    module, (x, y) = encoder(), data()
    network = rg.networks.read(module, "clip", heads=2)
    with pytest.raises(TypeError, match="module: expected a module of Python, got TorchScript"):
        rg.adapters.torch_value_and_grad(torch.jit.trace(module.eval(), x, check_trace=False), network, squares(x, y))
