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


@pytest.mark.parametrize("dtype", [np.float32, torch.float64])
@pytest.mark.parametrize("keep", ["attribute", "buffer", "persistent buffer", "parameter"])
def test_complex_tables_stay_complex(keep, dtype):
    module, (x, y) = Turning(keep), data(torch.float32)
    expected = squares(x, y)(module).item()
    kind = dtype if isinstance(dtype, torch.dtype) else torch.float32
    for source in (module, module.state_dict()):
        network = rg.networks.read(source, "clip", heads=2)
        evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x.to(kind), y.to(kind)), dtype=dtype)
        assert evaluate(network.blocks)[0] == pytest.approx(expected, rel=1e-5)


def test_an_attention_module_alone_is_a_layer_whose_symmetries_hold():
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64), torch.randn(3, 4, 8).double()
    network = rg.networks.read(module, "clip", heads=2)
    assert set(network.blocks) == {"query_key", "value_out", "out_proj.bias"}
    evaluate = rg.adapters.torch_value_and_grad(
        module, network, lambda call: (call(x, x, x)[0] - x).square().mean(), dtype=np.float64
    )
    assert rg.symmetry.verify(evaluate, network.blocks, network).holds


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
    assert not any("Taken for parameters" in item for item in network.summary().remarks)
    assert set(network.state_dict()) == set(module.state_dict())
    evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x, y), dtype=np.float64)
    parameters = list(module.parameters())
    grads = torch.autograd.grad(squares(x, y)(module), parameters)
    slope = sum((w * g).square().sum() for w, g in zip(parameters, grads, strict=True)).sqrt().item()
    result = rg.adaptive_sharpness(evaluate, network.blocks, 1e-7, n_restarts=1)
    assert result.value == pytest.approx(1e-7 * slope, rel=1e-6)


def test_a_state_dict_does_not_tell_and_it_is_said():
    module, (x, y) = Buffered(), data()
    network = rg.networks.read(module.state_dict(), "clip", heads=2)
    assert "scale" in network.blocks
    (message,) = (item for item in network.summary().remarks if "Taken for parameters" in item)
    assert f"the {len(network.shapes)} tensors" in message
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
    make, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=f"^loss: .*{message}"):
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


# A module that does more than it shows ------------------------------------------------------------------------------


class Recomputing(nn.Module):
    """Two layers whose activations are computed again in the backward pass, in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.layers, self.how = nn.Sequential(encoder(), encoder()), how

    def forward(self, x):
        if self.how == "sequential":
            return torch.utils.checkpoint.checkpoint_sequential(self.layers, 2, x, use_reentrant=False)
        for layer in self.layers:
            use_reentrant = self.how == "reentrant"
            again = torch.utils.checkpoint.checkpoint
            x = again(layer, x, use_reentrant=use_reentrant) if self.how != "kept" else layer(x)
        return x


def evaluate_moved(module, loss, dtype=np.float64, shift=0.1):
    """The loss and the gradients of a module at weights that are not its own."""
    network = rg.networks.read(module, "clip", heads=2)
    evaluate = rg.adapters.torch_value_and_grad(module, network, loss, frozen=FROZEN_ANYWHERE, dtype=dtype)
    rng = np.random.default_rng(0)
    pairs = {name: x for name, x in network.blocks.items() if isinstance(x, rg.Pair)}
    moved = {name: rg.Pair(*(y + shift * rng.standard_normal(y.shape) for y in x)) for name, x in pairs.items()}
    value, grads = evaluate({**network.blocks, **moved})
    return value, np.concatenate([np.ravel(part) for name in sorted(moved) for part in grads[name]])


FROZEN_ANYWHERE = ["*norm*"]


@pytest.mark.parametrize("how", ["not reentrant", "reentrant", "sequential"])
def test_activations_that_are_computed_again_have_the_right_gradients(how):
    x, y = (z[0] for z in data())
    inputs = x.requires_grad_() if how == "reentrant" else x
    kept, again = Recomputing("kept"), Recomputing(how)
    again.load_state_dict(kept.state_dict())
    for p in (norm := again.layers[0].norm1).parameters():
        p.grad = torch.ones_like(p)
    (value, gradient), (same_value, same) = (evaluate_moved(m, squares(inputs, y)) for m in (kept, again))
    assert same_value == pytest.approx(value, rel=1e-12)
    assert np.allclose(same, gradient, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in norm.parameters())
    assert x.grad is None
    assert sum(p.grad is not None for p in again.parameters()) == 2


class Merging(nn.Linear):
    """W + B A: in evaluation mode the product is in W."""

    def __init__(self, dtype=torch.float64):
        super().__init__(8, 8, dtype=dtype)
        self.A, self.B = (nn.Parameter(0.5 * torch.randn(*shape, dtype=dtype)) for shape in ((2, 8), (8, 2)))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1.0 if mode else 1.0) * (self.B @ self.A).data
            self.merged = not mode
        return self

    def forward(self, x):
        y = super().forward(x)
        return y if self.merged else y + x @ self.A.T @ self.B.T


class Clipping(nn.Linear):
    """Clips its own weights when it is called."""

    def __init__(self):
        super().__init__(8, 8, dtype=torch.float64)

    def forward(self, x):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


def snapshot(module):
    state = {name: x.clone() for name, x in module.state_dict().items()}
    return state, module.training, [(p.requires_grad, p.grad) for p in module.parameters()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("moves", [True, False])
def test_a_module_that_merges_its_weights_is_refused_and_stays_as_it_is(dtype, moves):
    kind = getattr(torch, np.dtype(dtype).name)
    module = nn.Sequential(encoder(kind), Merging(kind))
    x = data(kind)[0][0]
    state, *before = snapshot(module)
    network = rg.networks.read(module, "clip", heads=2)
    frozen = [] if moves else ["0.norm*", "1.*", "0.*bias", "0.linear*"]
    evaluate = rg.adapters.torch_value_and_grad(
        module, network, lambda call: call(x).square().mean(), frozen, dtype=dtype
    )
    if moves:
        with pytest.raises(
            ValueError, match=r"module: if it loads other weights, .* Does it merge, swap or keep weights"
        ):
            evaluate(network.blocks)
    else:
        fresh = nn.Sequential(encoder(kind), Merging(kind))
        fresh.load_state_dict(state)
        assert evaluate(network.blocks)[0] == pytest.approx(fresh.eval()(x).square().mean().item(), rel=1e-5)
    after, *rest = snapshot(module)
    assert all(torch.equal(state[name], after[name]) for name in state)
    assert rest == before


def test_a_module_that_clips_its_weights_changes_neither_the_module_nor_the_arrays():
    module, x = nn.Sequential(encoder(), Clipping()), data()[0][0]
    network = rg.networks.read(module, "clip", heads=2)
    copied = {name: np.copy(b) for name, b in network.blocks.items() if not isinstance(b, rg.Pair)}
    evaluate = rg.adapters.torch_value_and_grad(module, network, lambda call: call(x).square().mean(), dtype=np.float64)
    state, *_ = snapshot(module)
    evaluate({name: copied.get(name, b) for name, b in network.blocks.items()})
    assert all(torch.equal(state[name], x) for name, x in module.state_dict().items())
    assert all(np.array_equal(network.blocks[name], array) for name, array in copied.items())


def test_under_autocast_losses_follow_the_weights():
    module, (x, y) = encoder(torch.float32), (z[0] for z in data(torch.float32))
    network = rg.networks.read(module, "clip", heads=2)
    evaluate = rg.adapters.torch_value_and_grad(module, network, squares(x, y), frozen=FROZEN)
    moved = {n: rg.Pair(2.0 * b.G, b.H) if isinstance(b, rg.Pair) else b for n, b in network.blocks.items()}
    plain = [evaluate(blocks)[0] for blocks in (network.blocks, moved, network.blocks)]
    with torch.autocast("cpu", torch.bfloat16):
        cast = [evaluate(blocks)[0] for blocks in (network.blocks, moved, network.blocks)]
    assert cast == pytest.approx(plain, rel=0.05)
    assert abs(plain[1] / plain[0] - 1.0) > 1e-3


def test_buffers_of_a_file_that_the_module_does_not_have_are_named():
    def net():
        return nn.Sequential(encoder(), nn.Flatten(0, 1), nn.BatchNorm1d(8, dtype=torch.float64))

    trained, second, x = net(), net(), data()[0][0].unsqueeze(0)
    trained[2].running_mean.copy_(torch.randn(8))
    network = rg.networks.read(trained.state_dict(), "clip", heads=2)
    loss = lambda call: call(x).square().mean()  # noqa: E731
    with pytest.raises(ValueError, match=r"network: 2.running_mean differ from the module's buffers"):
        rg.adapters.torch_value_and_grad(second, network, loss, dtype=np.float64)
    second.load_state_dict(trained.state_dict())
    value, _ = rg.adapters.torch_value_and_grad(second, network, loss, dtype=np.float64)(network.blocks)
    assert value == pytest.approx(loss(trained.eval()).item())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:9"}, "device: expected cpu"), ({"device": "gpu"}, "device: expected cpu"),
        ({"device": "meta"}, "device: expected cpu"), ({"dtype": np.int32}, "dtype: expected one of float64, float32"),
        ({"dtype": "bfloat17"}, "dtype: expected one of float64, float32"),
    ],
)  # fmt: skip
def test_devices_and_dtypes_that_are_none_are_named(options, message):
    module = encoder()
    network = rg.networks.read(module, "clip", heads=2)
    with pytest.raises(ValueError, match=message):
        rg.adapters.torch_value_and_grad(module, network, lambda call: call(data()[0][0]).mean(), **options)
