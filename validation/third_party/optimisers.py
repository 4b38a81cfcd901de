"""Published optimisers of low-rank factors, as ``make(params)`` with params = [G, H], for W = B A = G Hᵀ.

    refgeo check validation/third_party/optimisers.py:peft_sgd --checks step

Packages are imported where they are installed. Clones of repositories are found in the folder that the environment
variable REPOSITORIES names, each under its name on GitHub; nothing of them is copied. What a repository wants of a
model is made here: the names of parameters, the layer of PEFT, or the activations from which it computes ∂ℓ/∂W. refgeo
is imported by a function that refgeo calls, so that `recomputed` runs the same code without it.
"""

import ast
import importlib
import importlib.util
import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch


def clone_of(repository):
    """Its folder."""
    folder = Path(os.environ.get("REPOSITORIES", "")) / repository
    if not os.environ.get("REPOSITORIES") or not folder.is_dir():
        raise NotImplementedError(f"{repository}: set REPOSITORIES to a folder with a clone of it")
    return folder


def module(repository, path, root=""):
    """Return a module of a clone: the file of a path, or with a root on sys.path the module of that dotted name."""
    folder = clone_of(repository)
    if not path.endswith(".py"):
        sys.path.insert(0, str(folder / root))
        return importlib.import_module(path)
    spec = importlib.util.spec_from_file_location(Path(path).stem, folder / path)
    result = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    return result


def lora(of_model):
    """A backend of an optimiser of a module with PEFT's names; all that it makes is in the precision it is given."""

    def make(params, **options):
        from refgeo.conformance.execution.adapters import lora_optimizer

        torch.set_default_dtype(params[0].dtype)
        return lora_optimizer(of_model)(params, **options)

    return SimpleNamespace(make=make, of_model=of_model)


def factors(model):
    """Return A (h × m) and B (n × h) of a module with PEFT's names."""
    return model.layer.lora_A["default"].weight, model.layer.lora_B["default"].weight


# Registries ----------------------------------------------------------------------------------------------------------


def peft_riemannian(base, **fixed):
    """PEFT's `create_riemannian_optimizer` around an optimiser of PyTorch."""

    def make(model, **options):
        from peft.optimizers import create_riemannian_optimizer

        return create_riemannian_optimizer(model, base, lr=0.1, **fixed, **options)

    return lora(make)


peft_sgd = peft_riemannian(torch.optim.SGD)
peft_sgd_undamped = peft_riemannian(torch.optim.SGD, reg=0.0)
peft_adamw = peft_riemannian(torch.optim.AdamW)
peft_adamw_undamped = peft_riemannian(torch.optim.AdamW, reg=0.0)


def _lorafa(model, lr=1e-2, **options):
    from peft.optimizers.lorafa import LoraFAOptimizer

    A, B = factors(model)
    names = ["layer.lora_A.default.weight", "layer.lora_B.default.weight"]
    group = {"params": [A, B], "names": names, "scaling_factors": [1.0, 1.0]}
    return LoraFAOptimizer([group], lr=lr, **options)


peft_lorafa = lora(_lorafa)


def lora_rite_of_package(**fixed):
    """LoRA-RITE in the package pytorch_optimizer."""

    def make(model, lr=1e-2, **options):
        from pytorch_optimizer import LoRARite

        return LoRARite(list(factors(model)), lr=lr, **fixed, **options)

    return lora(make)


rite_package = lora_rite_of_package()
rite_package_moving = lora_rite_of_package(update_skipping=0.0)


def lora_pro_of_package(**fixed):
    """LoRA-Pro in the package lora-pro-adamw."""

    def make(model, lr=1e-2, **options):
        from lora_pro import LoRAProAdamW

        return LoRAProAdamW(model, lr=lr, **fixed, **options)

    return lora(make)


lora_pro_full = lora_pro_of_package()
lora_pro_efficient = lora_pro_of_package(lorapro_mode="efficient")
lora_pro_efficient_by_eigenvectors = lora_pro_of_package(lorapro_mode="efficient", efficient_solver="eig")


def _pymanopt(state, G, H, e_G, e_H, rate=0.1):
    """Return a step of gradient descent on Pymanopt's `FixedRankEmbedded`, with its projection and retraction."""
    from pymanopt.manifolds import FixedRankEmbedded

    (Q_G, R_G), (Q_H, R_H) = np.linalg.qr(G), np.linalg.qr(H)
    U, s, V_transposed = np.linalg.svd(R_G @ R_H.T)
    point = (Q_G @ U, s, V_transposed @ Q_H.T)
    manifold = FixedRankEmbedded(len(G), len(H), G.shape[1])
    gradient = manifold.projection(point, tangent_part(*map(torch.tensor, (G, H, e_G, e_H))).numpy())
    step = type(gradient)(*(-rate * part for part in gradient))
    u, s, vt = manifold.retraction(point, step)
    return state, (u * np.sqrt(s)).astype(G.dtype), (vt.T * np.sqrt(s)).astype(H.dtype)


pymanopt_embedded = SimpleNamespace(step=_pymanopt)


def _adv(model, lr=1e-2, **options):
    from adv_optm import AdamW_adv

    return AdamW_adv(list(factors(model)), lr=lr, **options)


adv_adamw = lora(_adv)


# Repositories --------------------------------------------------------------------------------------------------------


def _rite(model, lr=1e-2, **options):
    optimiser = module("LoRA-RITE", "lora_rite.py").LoRARite
    return optimiser(list(factors(model)), lr=lr, **{"betas": (0.9, 0.999), **options})


rite = lora(_rite)
rite_moving = lora(lambda model, **options: _rite(model, update_skipping=0.0, **options))


def _loft(model, lr=1e-2, **options):
    optimiser = module("loft", "loft_optim.optimizer").LoFTAdamW
    return optimiser(list(factors(model)), lr=lr, model=model, **options)


loft = lora(_loft)
loft_undecayed = lora(lambda model, **options: _loft(model, weight_decay=0.0, **options))


def reflora(base, **fixed):
    """RefLoRA's `Refactorer` on a layer of PEFT, integrated into an optimiser of PyTorch."""

    def make(model, lr=1e-2, **options):
        from peft import LoraConfig, get_peft_model

        A, B = factors(model)
        layer = torch.nn.Sequential(torch.nn.Linear(A.shape[1], B.shape[0], bias=False))
        adapted = get_peft_model(layer, LoraConfig(r=A.shape[0], lora_alpha=A.shape[0], target_modules=["0"]))
        item = adapted.base_model.model[0]
        item.lora_A["default"].weight, item.lora_B["default"].weight = A, B
        optimiser = base([A, B], lr=lr, **options)
        module("RefLoRA", "reflora").Refactorer(adapted, **fixed).integrate_into_optimizer(optimiser)
        return optimiser

    return lora(make)


reflora_sgd = reflora(torch.optim.SGD)
reflora_adamw = reflora(torch.optim.AdamW)
reflora_scalar = reflora(torch.optim.AdamW, use_scalar=True)


def _lora_pro(model, lr=1e-2, **options):
    return module("lora_pro", "lora_pro").AdamWLoraPro(factors(model), lr=lr, scaling_factor=1.0, **options)


lora_pro = lora(_lora_pro)


def functions(repository, path, *names):
    """Functions and methods of a clone's file that cannot be imported, compiled alone."""
    tree = ast.parse((clone_of(repository) / path).read_text(encoding="utf-8"))
    wanted = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    result = {"torch": torch}
    exec(compile(ast.Module(wanted, []), path, "exec"), result)
    return [result[name] for name in names]


def _lora_pro_of_authors(model, lr=1e-2):
    """Return the adjustment of gradients in the authors' DeepSpeed, and a step of SGD along them."""
    path = "DeepSpeed-0.15.1/deepspeed/runtime/zero/stage_1_and_2.py"
    adjust, _ = functions("LoRA-Pro", path, "lorapro_full_adjustment", "solve_sylvester")
    A, B = factors(model)
    engine = SimpleNamespace(global_step=0, exp_avg={}, exp_avg_sq={}, params_in_partition=[[A, B]])
    optimiser = torch.optim.SGD([A, B], lr=lr)
    whole = optimiser.step

    def step():
        engine.global_step += 1  # which the engine does before it adjusts
        engine.averaged_gradients = [[A.grad, B.grad]]
        adjust(engine, 0)
        whole()

    optimiser.step = step
    return optimiser


lora_pro_of_authors = lora(_lora_pro_of_authors)


def loro(model, lr=1e-2, adam=True, **options):
    """LORO's exact update; without Adam, of the gradients themselves."""
    loro_optim = module("LORO-main", "loro_torch.loro_optim")
    lowrank = module("LORO-main", "loro_torch.lowrank_module")
    A, B = factors(model)
    layer = lowrank.LowRankLinear(torch.nn.Linear(A.shape[1], B.shape[0], bias=False), A.shape[0], "xavier")
    layer.weight_in, layer.weight_out = torch.nn.Parameter(A.detach().T.clone()), B
    groups = [{"params": [layer.weight_in], "type": "lowrank_in"}, {"params": [B], "type": "lowrank_out"}]
    optimiser = loro_optim.LOROAdamW(groups, lr=lr, loro_type="loro", model=layer, **options)
    whole = optimiser.step

    def step():
        with torch.no_grad():
            layer.weight_in.copy_(A.T)
        layer.weight_in.grad = A.grad.T.clone()
        if adam:
            whole(use_exact_loro=True)
        else:
            for p in (layer.weight_in, B):
                optimiser.state[p].update(lr=lr, lr_scaler=1.0, wd=0.0)
            with torch.no_grad():
                optimiser._loro_step(use_exact_loro=True)
        with torch.no_grad():
            A.copy_(layer.weight_in.T)

    optimiser.step = step
    return optimiser


loro_adam = lora(loro)
loro_plain = lora(lambda model, **options: loro(model, adam=False, **options))


def tangent_part(G, H, e_G, e_H):
    """The least E with the factors' gradients e_G = EH and e_H = EᵀG, which is its tangent part; also where G = 0."""
    by_H, by_G = torch.linalg.pinv(H), torch.linalg.pinv(G)
    return e_G @ by_H + by_G.T @ e_H.T - by_G.T @ (G.T @ e_G) @ by_H


INTRINSIC_MUON = "manifold-intrinsic-muon"


def riemannion_of_authors(name, **fixed):
    """Return an optimiser of Riemannion's authors, as iMuon's authors ship it.

    W = B A has other factors there, twice as long: Aᵀ = Q R gives (Q 0)ᵀ and (B Rᵀ P), with P a basis of B's columns.
    """

    def make(model, lr=1e-2, **options):
        path = "imuon/_third_party/RiemanianFinetune/src/optimizers/RiemannianLoRA.py"
        A, B = factors(model)
        Q, R = torch.linalg.qr(A.detach().T)
        core = R @ B.detach().T
        long_A = torch.cat([Q, torch.zeros_like(Q)], dim=1).T.contiguous().requires_grad_()
        long_B = torch.cat([core, torch.linalg.qr(core.T).Q.T]).T.contiguous().requires_grad_()
        group = {"params": [long_A, long_B], "param_names": ["lora_A.weight", "lora_B.weight"]}
        optimiser = getattr(module(INTRINSIC_MUON, path), name)([group], lr=lr, **fixed, **options)
        whole = optimiser.step

        def step():
            with torch.no_grad():
                E = tangent_part(B, A.T, B.grad, A.grad.T)
                long_A.grad, long_B.grad = long_B.T @ E, E @ long_A.T
                whole()
                A.copy_(long_A[: len(A)])
                B.copy_(long_B[:, : len(A)])

        optimiser.step = step
        return optimiser

    return lora(make)


riemannion_sgd = riemannion_of_authors("RiemannianSGD", momentum=0.9)


def intrinsic_muon(variant):
    """Return the optimiser iMuon for LoRA, with the options of its authors' run script."""

    def make(model, lr=5e-3, **options):
        A, B = factors(model)
        fixed = {"wd": 0.01, "momentum": 0.0, "nesterov": False, "lora_riemannian_muon": True}
        return module(INTRINSIC_MUON, "imuon/swift/trainers/optimizers/muon.py").Muon(
            lr, muon_params=[A, B], lora_pairs=[(A, B)], lora_riemannian_variant=variant, **fixed, **options
        )

    return lora(make)


intrinsic_muon_v5 = intrinsic_muon("v5")
intrinsic_muon_compact = intrinsic_muon("v5_compact")


def imuon_method(name):
    """Return a step of iMuon's authors' experiment with MovieLens: a function of factors, and their retraction."""

    def step(state, G, H, e_G, e_H, rate=1e-2):
        experiment = module(INTRINSIC_MUON, "experiments.run_movielens_fixed_rank", root="non-llm")
        before = experiment.FactorState(*map(torch.tensor, (G, H.T.copy())))
        directions = experiment.METHODS[name]["step_fn"](before, *map(torch.tensor, (e_G, e_H.T.copy())))
        after = experiment.retract_factors(before, *directions, rate)
        return state, after.b.numpy(), after.a.numpy().T

    return SimpleNamespace(step=step)


scaled_muon = imuon_method("scaled_muon")
spectron = imuon_method("spectron_muon")


def wrap_balora(base):
    """Wrap an optimiser of PyTorch as BaLoRA, with the authors' projection after every step."""

    def make(model, lr=1e-2, **options):
        optimiser = base(factors(model), lr=lr, **options)
        callback = module("balora", "callbacks.py").ProjectionCallback(model, 1)
        whole, state = optimiser.step, SimpleNamespace(global_step=0)

        def step():
            whole()
            callback.on_step_end(None, state, None)

        optimiser.step = step
        return optimiser

    return lora(make)


balora_sgd = wrap_balora(torch.optim.SGD)
balora_adamw = wrap_balora(torch.optim.AdamW)


def of_mirai(path, name):
    """Return an optimiser of Mirai."""

    def make(model, lr=1e-2, **options):
        A, B = factors(model)
        pair = module("mirai", "mirai.core.training.optim.lora_pairs").LoRAFactorPair("layer", A, B, 1.0)
        return getattr(module("mirai", path), name)([A, B], pairs=[pair], lr=lr, **options)

    return lora(make)


lora_muon = of_mirai("mirai.core.training.optim.lora_muon", "LoRAMuon")
lora_pro_of_mirai = of_mirai("mirai.core.training.optim.lora_pro", "LoRAProAdamW")


def alternating(name, **changed):
    """Return the optimisers of AltLoRA's authors, with the options and the turns of their trainer.

    Both factors are trained for 9 steps, then A and B in turn, for 10 steps each.
    """
    trained = {"betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 1e-5, "reg": 1e-5} | changed

    def make(model, lr=1e-2, **options):
        A, B = factors(model)
        optimiser = getattr(module("AltLoRA", "optimizer_new.py"), name)(model, lr, rank=len(A), **trained, **options)
        whole, resting = optimiser.step, itertools.chain([None] * 9, itertools.cycle([B] * 10 + [A] * 10))

        def step():
            frozen = next(resting)
            if frozen is not None:
                frozen.grad = None
            whole()

        optimiser.step = step
        return optimiser

    return lora(make)


altlora = alternating("altlora")
altlora_undamped = alternating("altlora", reg=0.0, weight_decay=0.0)
altlora_plus = alternating("altlora_plus")


def _riemannion(model, lr=1e-2, **options):
    riemannion = module("takenoko", "optimizers.riemannion", root="src")
    A, B = factors(model)
    layer = SimpleNamespace()
    group = {"params": [A, B], "use_riemannion": True, "lr": lr, "lora_down": A, "lora_up": B, "lora_module": layer}
    optimiser = riemannion.SingleDeviceRiemannionWithAuxAdam([group | options])
    whole = optimiser.step

    def step():
        layer._last_input = torch.eye(A.shape[1])
        layer._last_grad_output = tangent_part(B.detach(), A.detach().T, B.grad, A.grad.T).T
        whole()

    optimiser.step = step
    return optimiser


riemannion = lora(_riemannion)
PRECONDITIONED = "Mistral-7B/mistral/custom_optimizer.py"


def make_preconditioned(name, **fixed):
    """Return an optimiser of the authors of Riemannian-preconditioned LoRA."""

    def make(model, lr=1e-2, **options):
        optimiser = getattr(module("Riemannian_Preconditioned_LoRA", PRECONDITIONED), name)
        return optimiser([{"params": list(factors(model)), "weight_decay": 0.0}], lr, **fixed, **options)

    return lora(make)


preconditioned_sgd = make_preconditioned("SGDr", optimizer_reg=1e-6)
preconditioned_adamw = make_preconditioned("AdamWr")
