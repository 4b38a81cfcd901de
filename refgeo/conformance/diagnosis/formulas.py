"""The formulas of a backend as sums of terms: their values at points, and their text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from refgeo.conformance.protocol.operations import OPERATIONS, Operation, Parts
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import PAIR_METRICS
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.support.arguments import Array

Coefficients = dict[str, float]
Function = Callable[..., Pair]


UNREAD = (
    "no formula was found that gives these numbers, among sums of products of G, H, the vectors, S, T, S⁻¹ and T⁻¹, "
    "and of these with S + εI and T + εI"
)


GRAMS = ("S", "T", "S⁻¹", "T⁻¹")
_PRINTED_EQUATION = {"S T Λᵀ": 1.0, "Λᵀ T S": 1.0, "T Gᵀv_G": 1.0, "v_HᵀH S": -1.0}
"""The equation for Λ of Sec. 5.2 as printed, transposed."""
_COVECTORS = {entry.name for operation in OPERATIONS.values() for entry in operation.inputs if entry.type == "covector"}


@dataclass(frozen=True)
class Formula:
    """The formula that a backend computes.

    Attributes
    ----------
    G, H : dict
        The coefficient of each term, whose factors are separated by spaces. For a number: the terms with G and H parts.
    relation : dict or None
        For an implicit projection: coefficients of terms whose sum vanishes, an equation for Λ.
    projected : bool
        Whether the sum is projected to the horizontal space.
    epsilon : float
        The ε of S_ε = S + εI and T_ε = T + εI in the terms.
    digits : int
        The number of digits to which the numbers are explained.

    Examples
    --------
    >>> import refgeo as rg
    >>> formula = rg.read(rg.paper, metrics=["mix"], functions=["christoffel"])["christoffel", "mix"]
    >>> formula.G["a_G b_HᵀH T⁻¹"], len(formula.G)
    (0.5, 6)
    """

    G: Coefficients
    H: Coefficients
    relation: Coefficients | None = None
    projected: bool = False
    epsilon: float = 0.0
    digits: int = 15

    def lines(self) -> list[str]:
        """Return the formula as text: both parts, or their sum, and the equation for Λ.

        Examples
        --------
        >>> Formula({"e_G S": 1.0}, {"e_H T": -0.5}).lines()
        ['G: e_G S', 'H: −½ e_H T']
        """
        if all(term.startswith("tr(") for term in (*self.G, *self.H)):
            return [_sum({**self.G, **self.H})]
        form = "P(…)_{}: {}" if self.projected else "{}: {}"
        lines = [form.format(part, _sum(terms)) for part, terms in (("G", self.G), ("H", self.H))]
        return lines if self.relation is None else [*lines, f"{_sum(self.relation)} = 0"]

    @property
    def note(self) -> str:
        """The value of ε and the number of digits, if they are not the usual ones."""
        notes = [f"ε = {self.epsilon:.3g}"] if self.epsilon else []
        return ", ".join([*notes, *([f"to {self.digits} digits"] if self.digits < 9 else [])])

    def differs(self, right: Formula) -> str:
        """Describe the differences from the right formula term by term; empty if there are none."""
        differences: list[str] = []
        for mine, theirs in ((self.G, right.G), (self.H, right.H), (self.relation or {}, right.relation or {})):
            mine = mine if right.epsilon or not self.epsilon else {w.replace("_ε", ""): c for w, c in mine.items()}
            differences += _differences(mine, theirs)
        if self.relation == _PRINTED_EQUATION:
            differences.append("this is the equation as the paper prints it, whose Λ gives no horizontal vector")
        if self.projected != right.projected:
            differences.append("it is not projected" if right.projected else "it is projected")
        if self.epsilon and self.epsilon != right.epsilon:
            where = f"not {right.epsilon:.3g}" if right.epsilon else "in the place of S and T"
            differences.append(f"S + εI and T + εI with ε = {self.epsilon:.3g}, {where}")
        return "; ".join(differences)


def _differences(mine: Coefficients, theirs: Coefficients) -> Iterator[str]:
    """Yield descriptions of terms with another sign or factor, of missing terms, and of surplus ones."""
    both = [term for term in theirs if term in mine and mine[term] != theirs[term]]
    with_other_sign = [term for term in both if mine[term] == -theirs[term]]
    if with_other_sign:
        yield f"the sign of {' and of '.join(with_other_sign)}"
    for term in both:
        if term not in with_other_sign:
            yield f"the factor of {term}: {_fraction(mine[term])}, not {_fraction(theirs[term])}"
    missing, surplus = (
        {term: c for term, c in a.items() if term not in b} for a, b in ((theirs, mine), (mine, theirs))
    )
    if missing and sorted(missing.values()) == sorted(surplus.values()):
        yield f"{_sum(surplus)} stands where {_sum(missing)} belongs"
        return
    if missing:
        yield f"{_sum(missing)} is missing"
    if surplus:
        yield f"{_sum(surplus)} does not belong there"


_DECIMAL_DENOMINATORS = (10, 20, 50, 100, 200, 500, 1000)
_SYMBOLS = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(3, 4): "¾", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔"}


def _fraction(value: float) -> str:
    """Format a number as a fraction if it is one of small numbers."""
    size = Fraction(abs(value)).limit_denominator(1000)
    is_fraction = abs(size - abs(value)) <= 1e-9 * abs(value) and size.denominator not in _DECIMAL_DENOMINATORS
    return ("−" if value < 0 else "") + (_SYMBOLS.get(size, str(size)) if is_fraction else f"{abs(value):g}")


def _sum(terms: Coefficients) -> str:
    """Format a sum of terms.

    Examples
    --------
    >>> _sum({"v_G": 1.0, "G Λ": -1.5})
    'v_G − 3/2 G Λ'
    """
    text = ""
    for term, c in terms.items():
        text += (" − " if c < 0 else " + ") if text else ("−" if c < 0 else "")
        text += ("" if abs(c) == 1.0 else _fraction(abs(c)) + " ") + term
    return text or "0"


def definition_terms(
    operation: Operation, metric: str, point: Pair, vectors: Mapping[str, Pair], own: Function, raised: Function
) -> dict[str, Pair]:
    """Return the terms of the definition of a geodesic of order 2, or of a Hessian before its projection.

    The functions `own` are a backend's or the right ones; `raised` converts all gradients except that of the loss.
    """
    if operation.extra:
        return {"Γ(v,v)": own("christoffel", vectors["v"], vectors["v"])}
    if operation.name != "riemannian_hessian" or metric not in PAIR_METRICS:
        return {}
    e, w, v = (vectors[name] for name in operation.vectors)
    gradient = own("riemannian_gradient", e)
    S_dot, T_dot = (x.mT @ F + F.mT @ x for x, F in zip(v, point, strict=True))
    moving = Pair.unchecked(e.G @ S_dot, e.H @ T_dot)
    if metric == "mix":
        moving = raised("riemannian_gradient", Pair.unchecked(-gradient.G @ T_dot, -gradient.H @ S_dot))
    return {
        "grad(w)": raised("riemannian_gradient", w), "∂(grad)[v]": moving, "Γ(grad,v)": own("christoffel", gradient, v),
    }  # fmt: skip


def reference_functions(space: PairTangentSpace) -> Function:
    """Return the right functions at a point, by their names."""
    return lambda name, *vectors: getattr(space, name)(*vectors)


@dataclass
class SampleBatch:
    """A batch of base points of one shape with tangent vectors, and the backend's results of a function there.

    Attributes
    ----------
    space : PairTangentSpace
    vectors : dict of Pair
    results : tuple of ndarray
    """

    space: PairTangentSpace
    vectors: dict[str, Pair]
    results: Parts = ()
    _cached: dict[tuple[str, float], Array] = field(default_factory=dict)

    def rescale(self, G: float, H: float) -> SampleBatch:
        """Return the batch with its G and H parts multiplied by numbers, those of covectors divided."""

        def multiply(pair: Pair, power: int = 1) -> Pair:
            return Pair(G**power * pair.G, H**power * pair.H)

        vectors = {name: multiply(vector, -1 if name in _COVECTORS else 1) for name, vector in self.vectors.items()}
        return SampleBatch(self.space.metric.at(multiply(self.space.point)), vectors)

    def factor(self, name: str, epsilon: float = 0.0) -> Array:
        """Return the value of a factor of a term, and cache it."""
        key = name, epsilon if name[0] in "STM" else 0.0
        if key not in self._cached:
            self._cached[key] = np.asarray(self._value(name, epsilon))
        return self._cached[key]

    def _value(self, name: str, epsilon: float) -> Any:
        """Compute the value of a factor of a term."""
        if name.endswith("⁻¹"):
            return np.linalg.inv(self.factor(name[:-2], epsilon))
        if name in ("G", "H"):
            return getattr(self.space.point, name)
        if name[0] in "ST":
            factor = self.factor("G" if name[0] == "S" else "H")
            return factor.mT @ factor + ("ε" in name) * epsilon * np.eye(factor.shape[-1])
        if name[0] == "M":  # M_G = S⁻¹(ST)ˢ
            S, T = (self.factor(x) for x in ("ST" if name == "M_G" else "TS"))
            values, Q = np.linalg.eig(S @ T)
            return np.linalg.solve(S, ((Q * values[..., None, :] ** self.space.metric.s) @ np.linalg.inv(Q)).real)
        if "ᵀ" in name:
            left, right = name.split("ᵀ")
            return self.factor(left).mT @ self.factor(right)
        vector, part = name.split("_")
        return getattr(self.vectors[vector], part)


@dataclass(frozen=True)
class Term:
    """A product of matrices in a formula: of factors, vectors, Gram matrices and inverses.

    Attributes
    ----------
    names : tuple of str
        The names of the factors, the first of which is tall, or all of which are small.
    part : "G" or "H"
        The part of the result to which it belongs.
    kind : "tall", "trace" or "projected"
    """

    names: tuple[str, ...]
    part: str
    kind: str = "tall"

    def __str__(self) -> str:
        return f"tr({' '.join(self.names)})" if self.kind == "trace" else " ".join(self.names)

    @property
    def degrees(self) -> tuple[int, int]:
        """The degrees in G and in H, where parts of vectors count as factors, and those of covectors as their inverses.

        Examples
        --------
        >>> Term(("a_G", "S⁻¹", "b_GᵀG"), "G").degrees, Term(("e_G", "b_HᵀH"), "G").degrees
        ((1, 0), (-1, 2))
        """
        degree = {"G": 0, "H": 0}
        for name in self.names:
            if name[0] in "ST":
                degree["G" if name[0] == "S" else "H"] += -2 if name.endswith("⁻¹") else 2
            elif name[0] != "M":
                for side in name.split("ᵀ"):
                    degree[side[-1]] += -1 if side[:-2] in _COVECTORS else 1
        return degree["G"], degree["H"]

    @property
    def sides(self) -> set[str]:
        """The sides of its small matrices: "own" for the factor of its part, "other" for the other factor."""
        small = self.names if self.kind == "trace" else self.names[1:]
        belongs = {{"S": "G", "T": "H"}.get(name[0], name.removesuffix("⁻¹")[-1]) for name in small}
        return {"own" if side == self.part else "other" for side in belongs}

    @property
    def is_definition_term(self) -> bool:
        """Whether it is a part of the definition of a value."""
        return "(" in self.names[0]

    @property
    def matrices(self) -> list[str]:
        """The factors that are Gram matrices, such as S and T, or their inverses."""
        return [name for name in self.names if name[0] in "STM" and "ᵀ" not in name]

    def value(self, sample: SampleBatch, epsilon: float) -> Array:
        """Return the values at all points of a batch, as one vector."""
        value = sample.factor(self.names[0], epsilon)
        for name in self.names[1:]:
            value = value @ sample.factor(name, epsilon)
        if self.kind == "trace":
            return np.asarray(np.trace(value, axis1=-2, axis2=-1))
        if self.kind == "projected":
            parts = (value if part == self.part else 0.0 * x for part, x in zip("GH", sample.space.point, strict=True))
            return concatenate(sample.space.horizontal_projection(Pair(*parts)))
        return value.ravel()

    def with_epsilon(self) -> Term:
        """Return the term with S + εI and T + εI in place of S and T."""
        return Term(tuple(map(add_epsilon, self.names)), self.part, self.kind)


def add_epsilon(name: str) -> str:
    """Return the name of a factor with ε."""
    return f"{name[0]}_ε{name[1:]}" if name in GRAMS else name


def concatenate(parts: Iterable[Array]) -> Array:
    """Concatenate parts to one vector."""
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1).ravel()


def small_with(v: str) -> tuple[str, ...]:
    """Return the small matrices with one vector."""
    return f"{v}_GᵀG", f"Gᵀ{v}_G", f"{v}_HᵀH", f"Hᵀ{v}_H"


def _small_of(a: str, b: str) -> tuple[str, ...]:
    """Return the small matrices with two vectors."""
    return tuple(dict.fromkeys(f"{x}_{part}ᵀ{y}_{part}" for part in "GH" for x, y in ((a, b), (b, a))))


def dictionary(part: str, vectors: Sequence[str], letters: Sequence[str], kind: str = "tall") -> list[Term]:
    """Return the terms of one part that are linear in each of at most two vectors, simplest first."""
    triples = [(M, N, K) for M, N, K in itertools.product(letters, letters[1:], letters[1:])
               if N[0] != K[0] or N == K]  # fmt: skip
    factors = sorted([*itertools.product(letters, letters, ("",)), *triples], key=lambda names: sum(map(bool, names)))
    pairs = [pair for pair in factors if not pair[2]]
    products: list[tuple[str, ...]] = []
    if kind == "trace":
        products = [(M, N, f"{vectors[0]}_{part}ᵀ{vectors[1]}_{part}") for M, N, _ in pairs]
    elif not vectors:
        products = [(part, *pair) for pair in pairs]
    elif len(vectors) == 1:
        products = [(f"{vectors[0]}_{part}", *pair) for pair in pairs]
        products += [(part, M, C, *N) for C in small_with(vectors[0]) for M, *N in factors]
    else:
        orders = dict.fromkeys((tuple(vectors), tuple(reversed(vectors))))
        products = [(f"{x}_{part}", M, C, *N) for x, y in orders for C in small_with(y) for M, *N in factors]
        products += [(part, M, C, *N) for C in _small_of(*vectors) for M, *N in factors]
    return list(dict.fromkeys(Term(tuple(filter(None, names)), part, kind) for names in products))


def vector_choices(vectors: Sequence[str]) -> list[Sequence[str]]:
    """Return the vectors of a formula; for two vectors also each of them twice."""
    return [vectors, *([x, x] for x in vectors if len(vectors) == 2)]
