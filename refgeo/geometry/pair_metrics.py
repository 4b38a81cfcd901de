"""The pair metrics, inv and mix and all between: one family. Their geometry is `refgeo.geometry.pair_space`."""

from __future__ import annotations

from refgeo.geometry.accelerated import LARGE, FusedSpace, fast_balance
from refgeo.geometry.blocks import ONLY
from refgeo.geometry.gauge import balance
from refgeo.geometry.groups import Symmetry, general_linear
from refgeo.geometry.pair import Pair, as_pair
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.geometry.tangent_space import Metric
from refgeo.support.arguments import ENDS, number


class InterpolatedMetric(Metric[Pair]):
    r"""The metric :math:`S^{-1} \#_s T` between inv (s = 0) and mix (s = 1).

    :math:`⟨η, ζ⟩ = \mathrm{tr}(S^{-1}(ST)^s η_G^\top ζ_G) + \mathrm{tr}(T^{-1}(TS)^s η_H^\top ζ_H)`, with
    :math:`S = G^\top G` and :math:`T = H^\top H`: invariant under GL(h) for every s. The Riemannian gradient for s = ½
    is the preconditioned gradient of RefLoRA (Zhang et al., 2025). Complete for s = 0 only: otherwise a geodesic can
    lose rank in finite time, which raises `GeodesicIncompleteError` with the time.

    Parameters
    ----------
    s : float, 0 ≤ s ≤ 1
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance.

    Notes
    -----
    For 0 < s < 1 the metric depends on powers of the singular values σ of G Hᵀ, of which the smallest are known to
    eps times the largest: results have a relative error of about eps times the condition number of G Hᵀ.

    Examples
    --------
    The weight of G is (HᵀH/GᵀG)^½ for s = ½ and h = 1:

    >>> import refgeo as rg
    >>> M_G, M_H = rg.InterpolatedMetric(0.5).at(rg.Pair([[2.0]], [[4.0]])).metric_tensor()
    >>> round(M_G.item(), 12), round(M_H.item(), 12)
    (2.0, 0.5)
    """

    def __init__(self, s: float, relaxation: float = 0.0) -> None:
        self.s = number("s", s, "0 is inv, 1 is mix", least=0.0, most=1.0)
        self.relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
        self.name = {0.0: "inv", 1.0: "mix"}.get(self.s, f"s={self.s:g}")
        self.is_invariant = self.relaxation == 0.0

    def __repr__(self) -> str:
        s = f"{self.s:g}, " if type(self) is InterpolatedMetric else ""
        return f"{type(self).__name__}({s}relaxation={self.relaxation})"

    def at(self, point: Pair) -> PairTangentSpace:
        """Factorise `point` once and return its tangent space.

        Parameters
        ----------
        point : Pair, or a tuple (G, H)

        Returns
        -------
        PairTangentSpace

        Raises
        ------
        RankDeficientError
            A factor has numerical rank below h at double precision.

        Examples
        --------
        >>> import numpy as np, refgeo as rg
        >>> rg.MixedMetric().at(rg.Pair(np.ones((5, 1)), np.ones((4, 1)))).dim
        8
        """
        point = as_pair("point", point)
        if point.G.size + point.H.size >= LARGE:
            return FusedSpace(self, point, fast_balance(point.G, point.H, self.relaxation))
        return PairTangentSpace(self, point, balance(point.G, point.H, self.relaxation))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return GL(h); with a relaxation, too, although only O(h) leaves the metric invariant then."""
        return [general_linear(block)]


class InvariantMetric(InterpolatedMetric):
    r"""The metric "inv" (9): :math:`⟨η, ζ⟩ = \mathrm{tr}(S^{-1} η_G^\top ζ_G) + \mathrm{tr}(T^{-1} η_H^\top ζ_H)`.

    Each factor is measured in its own Gram matrix, :math:`S = G^\top G` and :math:`T = H^\top H`. Invariant under
    GL(h); geodesically complete; without units (scaling a loss's parameters changes nothing).

    Parameters
    ----------
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance; the
        default 0 needs no regularisation here, because no Gram matrix is inverted.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rng = np.random.default_rng(0)
    >>> point = rg.Pair(rng.standard_normal((12, 65, 8)), rng.standard_normal((12, 65, 8)))  # twelve heads
    >>> space = rg.InvariantMetric().at(point)
    >>> v = space.random_tangent_vector(rng)
    >>> space.geodesic(0.1 * v, order="exact")
    Pair(G (12, 65, 8), H (12, 65, 8))
    """

    def __init__(self, relaxation: float = 0.0) -> None:
        super().__init__(ENDS["inv"], relaxation)


class MixedMetric(InterpolatedMetric):
    r"""The metric "mix" (10): :math:`⟨η, ζ⟩ = \mathrm{tr}(T η_G^\top ζ_G) + \mathrm{tr}(S η_H^\top ζ_H)`.

    Each factor is measured in the other's Gram matrix, :math:`S = G^\top G` and :math:`T = H^\top H`. Invariant under
    GL(h); not complete: a geodesic can lose rank in finite time, which raises `GeodesicIncompleteError` with the time.

    Parameters
    ----------
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance.

    Examples
    --------
    Two numbers (G, H) move so that the product G H is a straight line in time (Sec. 5.1):

    >>> import refgeo as rg
    >>> space = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]]))
    >>> space.geodesic(rg.Pair([[1.0]], [[1.5]]), t=1.0, order="exact").product.round(12)
    array([[12.]])
    """

    def __init__(self, relaxation: float = 0.0) -> None:
        super().__init__(ENDS["mix"], relaxation)


PAIR_METRICS: dict[str, type[InvariantMetric] | type[MixedMetric]] = {"inv": InvariantMetric, "mix": MixedMetric}
"""The paper's two metrics by name."""


def pair_metric(name: str, relaxation: float = 0.0, argument: str = "metric", others: str = "") -> InterpolatedMetric:
    """Return the metric called "inv", "mix" or, between them, "s=0.5".

    Examples
    --------
    >>> pair_metric("s=0.5")
    InterpolatedMetric(0.5, relaxation=0.0)
    """
    if name in PAIR_METRICS:
        return PAIR_METRICS[name](relaxation)
    try:
        kind, _, value = name.partition("=")
        metric = InterpolatedMetric(float(value), relaxation)
        if kind == "s" and metric.name == name:
            return metric
    except (AttributeError, ValueError):
        pass
    raise ValueError(f'{argument}: expected "inv", "mix" or one between them such as "s=0.5"{others}, got {name!r}')
