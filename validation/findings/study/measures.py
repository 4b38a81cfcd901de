"""What is measured of a model: sharpness in every variant, curvature, relative flatness.

A model arrives as blocks (`refgeo.Pair` for what has a GL(h) symmetry, arrays for the rest) and a function of blocks
and a batch that returns the loss with its gradients. Nothing else is known of it, so that any program can be behind it.

Worst-case and average-case sharpness are refgeo's. Curvature comes from differences of gradients: in coordinates the
Riemannian Hessian at the point is the derivative of the gradient along geodesics; λ_max by SciPy's Lanczos, the trace
by Hutchinson's estimator. *Relative flatness* (Petzka et al. 2021), of a weight matrix with rows w_s, is

    κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr(H_{s,s'}),    H_{s,s'} the Hessian's block of rows s and s',

which is E[⟨D, H D⟩] for D = W Z with standard normal Z: two gradients a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

import refgeo as rg
from refgeo.geometry.pair import as_factors
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.networks.block_metric import moving
from refgeo.sharpness.spectrum import RiemannianHessian

Blocks = dict[str, Any]
ValueAndGrad = Callable[[Blocks, Any], tuple[float, Mapping[str, Any]]]


@dataclass(frozen=True)
class Model:
    """A trained model, ready to be measured.

    Attributes
    ----------
    blocks : dict of Pair or array
    value_and_grad : callable
        ``(blocks, batch) -> (loss, gradients)``.
    batches : sequence
    frozen : tuple of str
        Blocks that do not move, with wildcards.
    weights : tuple of str
        The weight matrices, as stored: rows are neurons. Relative flatness is the sum over these; the first is the
        last layer's, which is Petzka et al.'s feature layer.
    columns : dict
        What the table says of the model: ``gap``, ``test loss``, ``trained``, hyper-parameters.
    verify : bool
        False where the symmetries of the loss and its gradients have been verified once, for all models alike.
    """

    blocks: Blocks
    value_and_grad: ValueAndGrad
    batches: Sequence[Any]
    columns: dict[str, Any]
    frozen: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    verify: bool = True

    def moving(self) -> Blocks:
        """The blocks that are not frozen."""
        return {name: self.blocks[name] for name in moving(self.blocks, self.frozen)}


@dataclass(frozen=True)
class Measure:
    """One number of a model.

    Attributes
    ----------
    name : str
        As the table has it.
    kind : "worst", "average", "adaptive", "top", "trace" or "flatness"
    metric : str
        "inv", "mix", "s=0.5", "adaptive" (elementwise, order 1) or "Euclidean".
    order : 1, 2 or "exact"
    curvature : bool
        False: Γ is off.
    euclidean_norm : bool
        Lengths in the Euclidean norm (App. G).
    relaxation : float
        ε of App. H.2.
    """

    name: str
    kind: str
    metric: str = "Euclidean"
    order: Any = 2
    curvature: bool = True
    euclidean_norm: bool = False
    relaxation: float = 0.0

    @property
    def needs_radius(self) -> bool:
        """Whether it has a ρ."""
        return self.kind in ("worst", "average", "adaptive")

    @property
    def settings(self) -> dict[str, Any]:
        """The columns of the table that say what it is."""
        return {
            "measure": self.name, "kind": self.kind, "metric": self.metric, "order": self.order,
            "curvature": self.curvature, "norm": "Euclidean" if self.euclidean_norm else "metric",
            "relaxation": self.relaxation,
        }  # fmt: skip


def _worst(name: str, metric: str, **options: Any) -> Measure:
    return Measure(name, "worst", metric, **options)


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("adaptive", "adaptive", "adaptive", 1),
        _worst("inv", "inv"),
        _worst("mix", "mix"),
        _worst("s=0.5", "s=0.5"),
        _worst("inv, order 1", "inv", order=1),
        _worst("mix, order 1", "mix", order=1),
        _worst("inv, exact", "inv", order="exact"),
        _worst("mix, exact", "mix", order="exact"),
        _worst("inv, no Γ", "inv", curvature=False),
        _worst("mix, no Γ", "mix", curvature=False),
        _worst("inv, Euclidean norm", "inv", euclidean_norm=True),
        _worst("mix, Euclidean norm", "mix", euclidean_norm=True),
        *(_worst(f"{metric}, ε={e:g}", metric, relaxation=e) for metric in ("inv", "mix") for e in (1e-4, 1e-3, 1e-2)),
        Measure("adaptive, average", "average", "adaptive", 1),
        Measure("inv, average", "average", "inv"),
        Measure("mix, average", "average", "mix"),
        Measure("λ_max, Euclidean", "top"),
        Measure("λ_max, inv", "top", "inv"),
        Measure("λ_max, mix", "top", "mix"),
        Measure("trace, Euclidean", "trace"),
        Measure("trace, inv", "trace", "inv"),
        Measure("trace, mix", "trace", "mix"),
        Measure("relative flatness, last layer", "flatness"),
        Measure("relative flatness, all layers", "flatness"),
    )
}
"""By name. Without a word on it the geodesics are of order 2."""


@dataclass(frozen=True)
class Effort:
    """How much work a number may cost.

    Attributes
    ----------
    n_iter : int
        Of a search.
    n_samples : int
        Of an average.
    probes : int
        Random vectors of a trace, or of relative flatness.
    restarts : int
        Of Lanczos' method with 20 vectors, for λ_max to 1%.
    """

    n_iter: int = 20
    n_samples: int = 40
    probes: int = 10
    restarts: int = 10


@dataclass(frozen=True)
class Measured:
    """The numbers of one model."""

    model: Model
    effort: Effort
    seed: int = 0

    def rows(self, measure: Measure, radii: Sequence[float]) -> list[dict[str, Any]]:
        """One row for every radius and batch; a value that there is not is NaN, with a note."""
        result = []
        for index, batch in enumerate(self.model.batches):
            places = list(radii) if measure.needs_radius else [math.nan]
            note = ""
            try:
                numbers = self._numbers(measure, radii, batch)
            # a finding about the measure at this model, and no reason to lose the others
            except (ArithmeticError, ValueError, ArpackNoConvergence) as error:
                numbers, note = [math.nan] * len(places), f"{type(error).__name__}: {error}"
            result += [
                {**measure.settings, "rho": rho, "batch": index, "value": value, "note": note}
                for rho, value in zip(places, numbers, strict=True)
            ]
        return result

    def _numbers(self, measure: Measure, radii: Sequence[float], batch: Any) -> list[float]:
        if measure.kind == "adaptive":
            return self._adaptive(radii, batch)
        if measure.kind == "flatness":
            return [self._relative_flatness(measure, batch)]
        if measure.kind in ("top", "trace"):
            hessian = self._hessian(measure, batch)
            return [self._top(hessian) if measure.kind == "top" else self._trace(hessian)]
        if measure.kind == "average":
            return self._average(measure, radii, batch)
        if measure.euclidean_norm:
            return self._with_euclidean_norm(measure, radii, batch)
        return self._worst(measure, radii, batch)

    # Sharpness -------------------------------------------------------------------------------------------------

    def _metric(self, measure: Measure) -> rg.ProductMetric:
        moving = self.model.moving()
        if measure.metric in ("adaptive", "Euclidean"):
            on_arrays = rg.ElementwiseMetric() if measure.metric == "adaptive" else rg.EuclideanMetric()
            return rg.ProductMetric(dict.fromkeys(_arrays(moving), on_arrays))
        on_pairs: Any = pair_metric(measure.metric, measure.relaxation)
        return rg.networks.block_metric(moving, on_pairs)

    def _problem(self, measure: Measure, batch: Any) -> tuple[Any, Blocks, rg.ProductMetric]:
        """Loss with gradient, parameters and metric: pairs as two arrays where they are to be nothing else."""
        metric = self._metric(measure)
        if measure.metric not in ("adaptive", "Euclidean"):
            return lambda blocks: self.model.value_and_grad(blocks, batch), self.model.blocks, metric
        like = self.model.blocks

        def evaluate(arrays: Blocks) -> tuple[float, Blocks]:
            value, grads = self.model.value_and_grad(_with_pairs(arrays, like), batch)
            return value, _arrays({name: _as_pair(grads[name], like[name]) for name in grads})

        return evaluate, _arrays(like), metric

    def _worst(self, measure: Measure, radii: Sequence[float], batch: Any) -> list[float]:
        loss, params, metric = self._problem(measure, batch)
        order = measure.order if measure.curvature else 1
        actual = rg.worst_case_sharpness(
            loss, params, metric, list(radii), order=order, n_iter=self.effort.n_iter, n_restarts=1, rng=self.seed,
            verify=self.model.verify, maximizers=False,
        )  # fmt: skip
        return [result.value for result in actual.results]

    def _with_euclidean_norm(self, measure: Measure, radii: Sequence[float], batch: Any) -> list[float]:
        """Appendix G's ablation, as the paper's text has it."""
        moving = self.model.moving()
        blocks = [_block_of_the_paper(block, measure.metric) for block in moving.values()]

        def evaluate(points: list[Any]) -> tuple[float, list[Any]]:
            value, grads = self.model.value_and_grad(_with_points(self.model.blocks, moving, points), batch)
            return value, [as_factors(grads[name]) for name in moving]

        return [float(rg.paper.geodesic_sharpness(evaluate, blocks, rho, self.effort.n_iter)[0]) for rho in radii]

    def _adaptive(self, radii: Sequence[float], batch: Any) -> list[float]:
        actual = rg.adaptive_sharpness(
            lambda blocks: self.model.value_and_grad(blocks, batch), self.model.blocks, list(radii),
            names=list(self.model.moving()), n_iter=self.effort.n_iter, n_restarts=1,
            rng=self.seed, verify=self.model.verify, maximizers=False,
        )  # fmt: skip
        return [result.value for result in actual.results]

    def _average(self, measure: Measure, radii: Sequence[float], batch: Any) -> list[float]:
        loss, params, metric = self._problem(measure, batch)
        return [
            rg.average_case_sharpness(
                lambda blocks: loss(blocks)[0], params, metric, rho, distribution="normal", order=measure.order,
                n_samples=self.effort.n_samples, rng=self.seed,
            ).value
            for rho in radii
        ]  # fmt: skip

    # Curvature -------------------------------------------------------------------------------------------------

    def _hessian(self, measure: Measure, batch: Any) -> RiemannianHessian:
        return RiemannianHessian(*self._problem(measure, batch), step=_STEP)

    def _top(self, hessian: RiemannianHessian) -> float:
        start = np.random.default_rng(self.seed).standard_normal(hessian.shape[0])
        ncv = min(20, hessian.shape[0])
        result = eigsh(
            hessian, 1, which="LA", v0=start, ncv=ncv, maxiter=self.effort.restarts, tol=1e-2, return_eigenvectors=False
        )
        return float(result[0])

    def _trace(self, hessian: RiemannianHessian) -> float:
        generator = np.random.default_rng(self.seed)
        probes = generator.choice([-1.0, 1.0], (self.effort.probes, hessian.shape[0]))
        return float(np.mean([probe @ hessian.matvec(probe) for probe in probes]))

    def _relative_flatness(self, measure: Measure, batch: Any) -> float:
        loss, params, _ = self._problem(Measure("", "", "Euclidean"), batch)
        names = self.model.weights[:1] if measure.name.endswith("last layer") else self.model.weights
        generator, total = np.random.default_rng(self.seed), 0.0
        for name in names:
            W = params[name]
            for _ in range(self.effort.probes):
                D = W @ generator.standard_normal((W.shape[-1], W.shape[-1]))
                step = _STEP / max(float(np.linalg.norm(D)), 1e-300)
                ahead, behind = (
                    np.asarray(loss({**params, name: W + sign * step * D})[1][name]) for sign in (1.0, -1.0)
                )
                total += float(np.sum((ahead - behind) * D)) / (2.0 * step)
        return total / self.effort.probes


_STEP = 3e-3
"""The length of a step of differences, in the metric, that serves losses in double precision and in single."""


def _block_of_the_paper(block: Any, metric: str) -> Any:
    if isinstance(block, rg.Pair):
        return rg.paper.PairBlock(metric, (block.G, block.H), norm="euclidean")
    return rg.paper.ElementwiseBlock(block, scale=np.ones_like(block))


def _with_points(blocks: Blocks, moving: Iterable[str], points: list[Any]) -> Blocks:
    moved = {name: rg.Pair(*parts) if len(parts) == 2 else parts[0] for name, parts in zip(moving, points, strict=True)}
    return {**blocks, **moved}


def _arrays(blocks: Mapping[str, Any]) -> Blocks:
    """Return every pair as two arrays."""
    made: Blocks = {}
    for name, block in blocks.items():
        made |= {f"{name}.G": block.G, f"{name}.H": block.H} if isinstance(block, rg.Pair) else {name: block}
    return made


def _with_pairs(arrays: Mapping[str, Any], like: Blocks) -> Blocks:
    """Return the inverse of `_arrays`."""
    return {
        name: rg.Pair(arrays[f"{name}.G"], arrays[f"{name}.H"]) if isinstance(block, rg.Pair) else arrays[name]
        for name, block in like.items()
    }


def _as_pair(gradient: Any, like: Any) -> Any:
    return rg.Pair(*gradient) if isinstance(like, rg.Pair) else np.asarray(gradient, dtype=np.float64)
