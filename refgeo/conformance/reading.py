r"""It reads a backend's formula from its numbers: which words, with which coefficients, give what it returns.

Every operation is linear in each of its vectors and, at a given point, a sum of *words*: products of G or H or a
vector, of S = GᵀG, T = HᵀH, their inverses, and of one small matrix that holds the other vectors, such as
``a_G S⁻¹ b_GᵀG``. Least squares over the words' values at random points give coefficients. A reading counts only if
these are fractions of small numbers, and if with them the words give the backend's numbers at *other* points of *other*
shapes, to rounding. Otherwise nothing is said.

The smallest dictionary that explains the numbers is taken: what a value is made of (`made_of`), such as Γ(v, v); words
with small matrices of the part's own half alone, of the other half alone, of both; first of the degree in G and in H
that the numbers have, which is exact under powers of two; at last, or where that takes fewer words, with S + εI and
T + εI in the place of S and T, ε found by a search in one dimension. A geodesic is read power by power of t, and an
optimiser by its first step. The formula of a projection may be implicit: r = (v_G + GΛ, v_H − HΛᵀ), and what is read is
the linear equation that Λ satisfies, the one null vector of the words of an equation. The Hessian is horizontal, so its
words are projected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy  # its modules load where they are used

from refgeo.conformance.backend import TIMEOUT, Backend
from refgeo.conformance.call import Call, NoResult
from refgeo.conformance.features import Features
from refgeo.conformance.operations import OPERATIONS, VALUES, Operation, Parts, Value
from refgeo.conformance.points import Points
from refgeo.conformance.precision import PRECISIONS, representable
from refgeo.conformance.scene import Scene
from refgeo.conformance.steps import UPDATE_RULES, slope
from refgeo.conformance.trajectories import SCALES, Rule, Start
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import PAIR_METRICS, pair_metric
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.support.arguments import Array, listed, number, one_of

Coefficients = dict[str, float]
Function = Callable[..., Pair]
READABLE = (*VALUES, "retraction")
_SHAPES = (((7, 6, 3), 32), ((9, 5, 4), 3), ((5, 7, 2), 3))
"""Shapes and numbers of points: the first are fitted, the others are fresh."""
_SCALARS = 4
"""So many times as many points where a result is one number."""
_TIMES = (0.5, -0.75, 1.25, 2.0, -1.5, 0.25)
_POWERS = np.array(_TIMES)[:, None] ** np.arange(5)
_SHORT = 0.1
"""The length of a step, beside that of G Hᵀ, whose formula is read."""
_DAMPED = (1e-13, 3.0)
"""ε is looked for between these."""
UNREAD = (
    "no formula was found that gives these numbers, among sums of products of G, H, the vectors, S, T, S⁻¹ and T⁻¹, "
    "and of these with S + εI and T + εI"
)
_LETTERS = ("S", "T", "S⁻¹", "T⁻¹")
_AS_PRINTED = {"S T Λᵀ": 1.0, "Λᵀ T S": 1.0, "T Gᵀv_G": 1.0, "v_HᵀH S": -1.0}
"""That of Λ in Sec. 5.2, transposed."""
_COVECTORS = {one.name for operation in OPERATIONS.values() for one in operation.inputs if one.type == "covector"}


@dataclass(frozen=True)
class Formula:
    """What a backend computes.

    Attributes
    ----------
    G, H : dict
        From a word, factors separated by spaces, to its coefficient. Of a number: its terms with G and with H parts.
    relation : dict or None
        Of a projection that is not explicit: words whose sum with these coefficients vanishes, an equation for Λ.
    projected : bool
        Whether the words' sum is projected to the horizontal space.
    epsilon : float
        S_ε = S + εI and T_ε = T + εI in the words.
    digits : int
        To so many digits the numbers are explained.

    Examples
    --------
    >>> from refgeo import paper
    >>> formula = read(paper, metrics=["mix"], functions=["christoffel"])["christoffel", "mix"]
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
        """The formula in words: both parts, or their sum, and the equation for Λ.

        Examples
        --------
        >>> Formula({"e_G S": 1.0}, {"e_H T": -0.5}).lines()
        ['G: e_G S', 'H: −½ e_H T']
        """
        if all(word.startswith("tr(") for word in (*self.G, *self.H)):
            return [_sum({**self.G, **self.H})]
        form = "P(…)_{}: {}" if self.projected else "{}: {}"
        lines = [form.format(part, _sum(words)) for part, words in (("G", self.G), ("H", self.H))]
        return lines if self.relation is None else [*lines, f"{_sum(self.relation)} = 0"]

    @property
    def note(self) -> str:
        """What is to be said beside the words; empty if nothing."""
        said = [f"ε = {self.epsilon:.3g}"] if self.epsilon else []
        return ", ".join([*said, *([f"to {self.digits} digits"] if self.digits < 9 else [])])

    def differs(self, right: Formula) -> str:
        """In what it differs from the right formula, term by term; empty if in nothing."""
        said: list[str] = []
        for mine, theirs in ((self.G, right.G), (self.H, right.H), (self.relation or {}, right.relation or {})):
            mine = mine if right.epsilon or not self.epsilon else {w.replace("_ε", ""): c for w, c in mine.items()}
            said += _differences(mine, theirs)
        if self.relation == _AS_PRINTED:
            said.append("this is the equation as the paper prints it, whose Λ gives no horizontal vector")
        if self.projected != right.projected:
            said.append("it is not projected" if right.projected else "it is projected")
        if self.epsilon and self.epsilon != right.epsilon:
            where = f"not {right.epsilon:.3g}" if right.epsilon else "in the place of S and T"
            said.append(f"S + εI and T + εI with ε = {self.epsilon:.3g}, {where}")
        return "; ".join(said)


def _differences(mine: Coefficients, theirs: Coefficients) -> Iterator[str]:
    """The words that have another sign, another factor, are missing or more than there should be."""
    both = [word for word in theirs if word in mine and mine[word] != theirs[word]]
    turned = [word for word in both if mine[word] == -theirs[word]]
    if turned:
        yield f"the sign of {' and of '.join(turned)}"
    for word in both:
        if word not in turned:
            yield f"the factor of {word}: {_fraction(mine[word])}, not {_fraction(theirs[word])}"
    missing, more = (
        {word: c for word, c in one.items() if word not in other} for one, other in ((theirs, mine), (mine, theirs))
    )
    if missing and sorted(missing.values()) == sorted(more.values()):
        yield f"{_sum(more)} stands where {_sum(missing)} belongs"
        return
    if missing:
        yield f"{_sum(missing)} is missing"
    if more:
        yield f"{_sum(more)} does not belong there"


_TENS = (10, 20, 50, 100, 200, 500, 1000)
_SIGNS = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(3, 4): "¾", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔"}


def _fraction(value: float) -> str:
    size = Fraction(abs(value)).limit_denominator(1000)
    is_one = abs(size - abs(value)) <= 1e-9 * abs(value) and size.denominator not in _TENS
    return ("−" if value < 0 else "") + (_SIGNS.get(size, str(size)) if is_one else f"{abs(value):g}")


def _sum(words: Coefficients) -> str:
    """A sum of words as people write it.

    Examples
    --------
    >>> _sum({"v_G": 1.0, "G Λ": -1.5})
    'v_G − 3/2 G Λ'
    """
    text = ""
    for word, c in words.items():
        text += (" − " if c < 0 else " + ") if text else ("−" if c < 0 else "")
        text += ("" if abs(c) == 1.0 else _fraction(abs(c)) + " ") + word
    return text or "0"


def made_of(
    operation: Operation, metric: str, point: Pair, vectors: Mapping[str, Pair], own: Function, raised: Function
) -> dict[str, Pair]:
    """What a geodesic of order 2, and a Hessian before its projection, is made of, with these functions; all gradients
    but that of the loss are `raised`.
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


def functions_at(space: PairTangentSpace) -> Function:
    """The right functions at a point, by their names."""
    return lambda name, *vectors: getattr(space, name)(*vectors)


# Numbers at random points --------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """Points of one shape with vectors, in a batch, and what a backend gives for them.

    Attributes
    ----------
    space : PairTangentSpace
    vectors : dict of Pair
    results : tuple of ndarray
    """

    space: PairTangentSpace
    vectors: dict[str, Pair]
    results: Parts = ()
    _kept: dict[tuple[str, float], Array] = field(default_factory=dict)

    def scaled(self, G: float, H: float) -> Sample:
        """Everything with its G and H parts scaled, a covector's by the inverse."""

        def times(pair: Pair, power: int = 1) -> Pair:
            return Pair(G**power * pair.G, H**power * pair.H)

        vectors = {name: times(vector, -1 if name in _COVECTORS else 1) for name, vector in self.vectors.items()}
        return Sample(self.space.metric.at(times(self.space.point)), vectors)

    def named(self, name: str, epsilon: float = 0.0) -> Array:
        """The value of a factor of a word."""
        key = name, epsilon if name[0] in "STM" else 0.0
        if key not in self._kept:
            self._kept[key] = np.asarray(self._value(name, epsilon))
        return self._kept[key]

    def _value(self, name: str, epsilon: float) -> Any:
        if name.endswith("⁻¹"):
            return np.linalg.inv(self.named(name[:-2], epsilon))
        if name in ("G", "H"):
            return getattr(self.space.point, name)
        if name[0] in "ST":
            factor = self.named("G" if name[0] == "S" else "H")
            return factor.mT @ factor + ("ε" in name) * epsilon * np.eye(factor.shape[-1])
        if name[0] == "M":  # M_G = S⁻¹(ST)ˢ
            S, T = (self.named(x) for x in ("ST" if name == "M_G" else "TS"))
            values, Q = np.linalg.eig(S @ T)
            return np.linalg.solve(S, ((Q * values[..., None, :] ** self.space.metric.s) @ np.linalg.inv(Q)).real)
        if "ᵀ" in name:
            left, right = name.split("ᵀ")
            return self.named(left).mT @ self.named(right)
        vector, part = name.split("_")
        return getattr(self.vectors[vector], part)


Exact = Callable[[Array, float], list[float] | None]
"""From numbers to the coefficients that somebody has written."""


class _Reader:
    """The numbers of one function of a backend, block by block, at points of several shapes."""

    def __init__(
        self,
        backend: Backend | None,
        operation: Operation,
        metric: str,
        dtype: str,
        relaxation: float,
        samples: Sequence[Sample] = (),
    ) -> None:
        self.backend, self.operation, self.metric, self.precision = backend, operation, metric, PRECISIONS[dtype]
        self.relaxation = relaxation
        self.samples = list(samples) or [self._drawn(*shape, count) for shape, count in _SHAPES]
        self.made: list[str] = []
        for sample in self.samples:
            functions = [functions_at(sample.space)] * 2
            pieces = made_of(operation, metric, sample.space.point, sample.vectors, *functions)
            sample.vectors, self.made = sample.vectors | pieces, [*pieces]
        letters = ("", *_LETTERS) if not relaxation else ("", *map(_shifted, _LETTERS), *_LETTERS)
        self.letters = letters if metric in PAIR_METRICS else (*letters, "M_G", "M_H", "M_G⁻¹", "M_H⁻¹")
        # how closely the words must give the numbers, beside their size
        roundoff = self.precision.roundoff
        self.tolerance = float(min(2e4 * roundoff, 300.0 * roundoff**0.9, 0.02))
        self.digits = int(-np.log10(self.tolerance) + 1.5)
        self.exact: Exact = _fractions

    def _drawn(self, n: int, m: int, h: int, count: int) -> Sample:
        """Well-conditioned points, with random vectors."""
        rng, dtype = np.random.default_rng([n, m, h]), self.precision.name
        count = count * _SCALARS if self.operation.scalar else count
        factors = [
            np.linalg.qr(rng.standard_normal((count, rows, h)))[0]
            @ (rng.uniform(0.6, 1.7, (count, h, 1)) * np.linalg.qr(rng.standard_normal((count, h, h)))[0])
            for rows in (n, m)
        ]
        space = pair_metric(self.metric, self.relaxation).at(representable(Pair(*factors), dtype))
        vectors = {
            name: representable(Pair(*(0.6 * rng.standard_normal(F.shape) for F in space.point)), dtype)
            for name in self.operation.vectors
        }
        return Sample(space, vectors)

    def numbers(self, sample: Sample, extra: tuple[Any, ...] = ()) -> Parts:
        """The results at every point of a sample."""
        assert self.backend is not None
        found = []
        pairs = [sample.space.point, *(sample.vectors[name] for name in self.operation.vectors)]
        for i in range(sample.space.point.block_shape[0]):
            arrays = [factor[i].astype(self.precision.carrier) for pair in pairs for factor in pair]
            shapes = self.operation.shapes(Pair(*arrays[:2]))
            call = Call(self.operation.name, self.metric, arrays, extra, shapes)
            found.append(self.backend.call(call).result())
        return tuple(np.array(part) for part in zip(*found, strict=True))

    def results(self, part: int) -> list[Array]:
        """One part of the results at each sample."""
        return [sample.results[part] for sample in self.samples]

    def explains(self, predicted: Any, numbers: Array) -> bool:
        """Whether two arrays are the same, up to rounding."""
        size = float(np.linalg.norm(numbers))
        return bool(np.linalg.norm(predicted - numbers) <= self.tolerance * size) if size else not np.any(predicted)

    def degrees(self) -> list[tuple[int, int] | None]:
        """The degrees of the parts in G and in H, exactly, where they have one."""
        if self.backend is None:  # those of the right formula, which a wrong one has as a rule
            right = right_formula(self.operation.name, self.metric, self.relaxation)
            parts = [] if right is None else [right.G] if self.operation.scalar else [right.G, right.H]
            words = (next(iter(part)).removeprefix("tr(").removesuffix(")") for part in parts)
            return [Word(tuple(word.split(" ")), "G").degrees for word in words]
        sample = self.samples[0]
        here = self.numbers(sample)
        there = [self.numbers(sample.scaled(*scales)) for scales in ((2.0, 1.0), (1.0, 2.0))]
        found = []
        for x, *scaled in zip(here, *there, strict=True):
            sizes = [float(np.linalg.norm(y)) for y in (x, *scaled)]
            powers = [round(np.log2(size / sizes[0])) if all(sizes) else 0 for size in sizes[1:]]
            same = all(self.explains(2.0**power * x, y) for power, y in zip(powers, scaled, strict=True))
            found.append((powers[0], powers[1]) if same and self.metric in PAIR_METRICS else None)
        return found


# Words ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Word:
    """A product of factors.

    Attributes
    ----------
    names : tuple of str
        Of the factors, the first one tall, or all of them small.
    part : "G" or "H"
        Of the result that it stands in.
    kind : "tall", "trace" or "projected"
    """

    names: tuple[str, ...]
    part: str
    kind: str = "tall"

    def __str__(self) -> str:
        return f"tr({' '.join(self.names)})" if self.kind == "trace" else " ".join(self.names)

    @property
    def degrees(self) -> tuple[int, int]:
        """In G and in H, parts of vectors counted with the factors, those of covectors against them.

        Examples
        --------
        >>> Word(("a_G", "S⁻¹", "b_GᵀG"), "G").degrees, Word(("e_G", "b_HᵀH"), "G").degrees
        ((1, 0), (-1, 2))
        """
        degree = {"G": 0, "H": 0}
        for name in self.names:
            if name[0] in "ST":
                degree["G" if name[0] == "S" else "H"] += -2 if name.endswith("⁻¹") else 2
            elif name[0] != "M":
                for one in name.split("ᵀ"):
                    degree[one[-1]] += -1 if one[:-2] in _COVECTORS else 1
        return degree["G"], degree["H"]

    @property
    def halves(self) -> set[str]:
        """Whose small matrices it has: its part's "own", the "other" one's."""
        small = self.names if self.kind == "trace" else self.names[1:]
        whose = {{"S": "G", "T": "H"}.get(name[0], name.removesuffix("⁻¹")[-1]) for name in small}
        return {"own" if one == self.part else "other" for one in whose}

    @property
    def is_made(self) -> bool:
        """Whether it is one of the things that a value is made of."""
        return "(" in self.names[0]

    @property
    def matrices(self) -> list[str]:
        """The Gram matrices and inverses in it."""
        return [name for name in self.names if name[0] in "STM" and "ᵀ" not in name]

    def value(self, sample: Sample, epsilon: float) -> Array:
        """Flat, of all points of a sample."""
        found = sample.named(self.names[0], epsilon)
        for name in self.names[1:]:
            found = found @ sample.named(name, epsilon)
        if self.kind == "trace":
            return np.asarray(np.trace(found, axis1=-2, axis2=-1))
        if self.kind == "projected":
            parts = (found if part == self.part else 0.0 * x for part, x in zip("GH", sample.space.point, strict=True))
            return _flat(sample.space.horizontal_projection(Pair(*parts)))
        return found.ravel()

    def shifted(self) -> Word:
        """With S + εI and T + εI in the place of S and T."""
        return Word(tuple(map(_shifted, self.names)), self.part, self.kind)


def _shifted(name: str) -> str:
    return f"{name[0]}_ε{name[1:]}" if name in _LETTERS else name


def _flat(parts: Iterable[Array]) -> Array:
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1).ravel()


def _of_one(v: str) -> tuple[str, ...]:
    return f"{v}_GᵀG", f"Gᵀ{v}_G", f"{v}_HᵀH", f"Hᵀ{v}_H"


def _of_two(a: str, b: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{x}_{part}ᵀ{y}_{part}" for part in "GH" for x, y in ((a, b), (b, a))))


def _words(part: str, vectors: Sequence[str], letters: Sequence[str], kind: str = "tall") -> list[Word]:
    """Words of one part, linear in each of at most two vectors, simplest first."""
    triples = [(M, N, K) for M, N, K in itertools.product(letters, letters[1:], letters[1:])
               if N[0] != K[0] or N == K]  # fmt: skip
    around = sorted([*itertools.product(letters, letters, ("",)), *triples], key=lambda names: sum(map(bool, names)))
    alone = [pair for pair in around if not pair[2]]
    found: list[tuple[str, ...]] = []
    if kind == "trace":
        found = [(M, N, f"{vectors[0]}_{part}ᵀ{vectors[1]}_{part}") for M, N, _ in alone]
    elif not vectors:
        found = [(part, *pair) for pair in alone]
    elif len(vectors) == 1:
        found = [(f"{vectors[0]}_{part}", *pair) for pair in alone]
        found += [(part, M, C, *N) for C in _of_one(vectors[0]) for M, *N in around]
    else:
        orders = dict.fromkeys((tuple(vectors), tuple(reversed(vectors))))
        found = [(f"{x}_{part}", M, C, *N) for x, y in orders for C in _of_one(y) for M, *N in around]
        found += [(part, M, C, *N) for C in _of_two(*vectors) for M, *N in around]
    return list(dict.fromkeys(Word(tuple(filter(None, names)), part, kind) for names in found))


def _several(vectors: Sequence[str]) -> list[Sequence[str]]:
    """The vectors of a formula; of two also one of them twice, and none of the other."""
    return [vectors, *([x, x] for x in vectors if len(vectors) == 2)]


# Least squares over words --------------------------------------------------------------------------------------------


def _fitted(columns: Array, numbers: Array, tolerance: float, exact: Exact) -> dict[int, float] | None:
    """The coefficients of the columns that give the numbers, as exact ones; None if there are none.

    Columns come in the order of preference: what depends on those before it is left out.
    """
    if not np.any(numbers):
        return {}
    sizes = np.linalg.norm(columns, axis=0)
    used = np.flatnonzero(sizes > 0.0)
    R = np.linalg.qr(columns[:, used] / sizes[used], mode="r")
    used = used[: len(R)][np.abs(np.diagonal(R)) > 1e-7][: len(numbers) // 2]
    found = np.zeros(0)
    for _ in range(4):  # what is next to nothing beside the others is left out, and the rest fitted again
        if not len(used):
            return None
        scaled = columns[:, used] / sizes[used]
        found = np.linalg.lstsq(scaled, numbers, rcond=None)[0]
        if np.linalg.norm(scaled @ found - numbers) > 3.0 * tolerance * np.linalg.norm(numbers):
            return None
        large = np.abs(found) > 1e-3 * np.max(np.abs(found))
        found, used = found[large], used[large]
        if large.all():
            break
    coefficients = exact(found / sizes[used], tolerance)
    return None if coefficients is None else dict(zip(map(int, used), coefficients, strict=True))


def _fractions(numbers: Array, tolerance: float) -> list[float] | None:
    """The numbers as fractions of small ones; None if they are none."""
    most, slack = (1000, 1e-9) if tolerance < 1e-9 else (24, 0.1 / 24**2)
    found = [float(Fraction(float(c)).limit_denominator(most)) for c in numbers]
    close = all(abs(x - c) <= slack * max(1.0, abs(c)) for x, c in zip(found, numbers, strict=True))
    return found if close else None


def _decimals(numbers: Array, tolerance: float) -> list[float] | None:
    """The numbers as decimals of few digits, which is how step lengths are written; None if they are none."""
    digits = 5 if tolerance < 1e-9 else 2
    found = [float(f"{c:.{digits}g}") for c in numbers]
    return found if np.allclose(found, numbers, rtol=10.0**-digits / 50.0, atol=0.0) else None


def _columns(words: Sequence[Word], sample: Sample, epsilon: float) -> Array:
    return np.array([word.value(sample, epsilon) for word in words]).T


Fit = tuple[Coefficients, float]
"""Words with coefficients, and ε."""


def _read_part(
    reader: _Reader, results: Sequence[Array], words: Sequence[Word], degrees: Any = None, damping: bool = True
) -> Fit | None:
    """One part of the results, of each sample, in the smallest dictionary that explains it.

    `degrees`: those of the part, or of each part by its name, if it has any.
    """
    known = degrees if isinstance(degrees, dict) else dict.fromkeys("GH", degrees)
    made, others = ([word for word in words if word.is_made is it] for it in (True, False))
    fitting = [word for word in others if word.degrees == known[word.part]]
    single, short = ([word for word in others if word.kind == "projected" or len(word.matrices) < n] for n in (2, 3))
    tiers = [
        [*made, *(word for word in tier if word.halves <= halves)]
        for tier in (fitting, single, short)
        for halves in ({"own"}, {"other"}, {"own", "other"})
    ]
    if made:
        fit = _plain(reader, results, [[*(word for word in others if len(word.names) == 1), *made]])
        if fit is not None:
            return fit
    plain = _plain(reader, results, tiers)
    if not damping or (plain is not None and None not in known.values()):
        return plain
    damped = _damped(reader, results, tiers[6:])  # e_G S + ½ e_G, which has no degree, is e_G S_ε
    return min(filter(None, (plain, damped)), key=lambda fit: len(fit[0]), default=None)


def _plain(reader: _Reader, results: Sequence[Array], tiers: Sequence[list[Word]]) -> Fit | None:
    for tier in filter(None, tiers):
        fit = _attempt(reader, results, tier, reader.relaxation)
        if fit is not None:
            return fit, reader.relaxation * any("ε" in word for word in fit)
    return None


def _damped(reader: _Reader, results: Sequence[Array], tiers: Sequence[list[Word]]) -> Fit | None:
    """With one matrix: T⁻¹T⁻¹ is what ε does to T⁻¹ at first order, and I what it does to T."""
    for tier in tiers:
        shifted = [word.shifted() for word in tier if len(word.matrices) == 1 and word.matrices[0] in _LETTERS]
        epsilon = _damping(reader.samples[0], results[0], shifted) if shifted else 0.0
        fit = _attempt(reader, results, shifted, epsilon) if epsilon else None
        if fit is not None:
            return fit, epsilon
    return None


def _attempt(reader: _Reader, results: Sequence[Array], words: list[Word], epsilon: float) -> Coefficients | None:
    """Fitted at the first sample, confirmed at the others."""
    found = _fitted(_columns(words, reader.samples[0], epsilon), results[0].ravel(), reader.tolerance, reader.exact)
    if found is None:
        return None
    for sample, part in zip(reader.samples[1:], results[1:], strict=True):
        if not reader.explains(sum(c * words[i].value(sample, epsilon) for i, c in found.items()), part.ravel()):
            return None
    return {str(words[i]): c for i, c in found.items()}


def _damping(sample: Sample, part: Array, words: list[Word]) -> float:
    """The ε that explains the numbers best."""

    def misfit(x: float) -> float:
        columns = _columns(words, sample, 10.0**x)
        columns = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        found = np.linalg.lstsq(columns, part.ravel(), rcond=1e-9)[0]
        return float(np.linalg.norm(columns @ found - part.ravel()))

    low, high = np.log10(_DAMPED[0]), np.log10(_DAMPED[1])
    grid = np.linspace(low, high, 40)
    best, step = float(grid[int(np.argmin([misfit(x) for x in grid]))]), (high - low) / 39
    bounds = (best - step, best + step)
    found = scipy.optimize.minimize_scalar(misfit, bounds=bounds, method="bounded", options={"xatol": 1e-13})
    written = float(f"{10.0**found.x:.4g}")  # what somebody has written
    return written if misfit(np.log10(written)) <= 2.0 * found.fun else float(10.0**found.x)


# Each kind of result -------------------------------------------------------------------------------------------------


def _formula(reader: _Reader, fits: Sequence[Fit | None], **more: Any) -> Formula | None:
    """Of both parts, if both were read."""
    if None in fits:
        return None
    (G, of_G), (H, of_H) = (fit for fit in fits if fit is not None)
    return Formula(G, H, epsilon=max(of_G, of_H), digits=reader.digits, **more)


def _parts(reader: _Reader, damping: bool = True) -> Formula | None:
    """A result that is a vector, part by part; of a number the terms with G and with H parts together."""
    scalar, fits = reader.operation.scalar, []
    for i, degrees in enumerate(reader.degrees()):
        words = [
            word
            for vectors in _several(reader.operation.vectors)
            for part in ("GH" if scalar else "GH"[i])
            for word in _words(part, vectors, reader.letters, "trace" if scalar else "tall")
        ]
        fits.append(_read_part(reader, reader.results(i), words, degrees, damping))
    if scalar and fits[0] is not None:
        terms, epsilon = fits[0]
        fits = [({word: c for word, c in terms.items() if word.endswith(f"{part})")}, epsilon) for part in "GH"]
    return _formula(reader, fits)


def _projection(reader: _Reader) -> Formula | None:
    return _parts(reader, damping=False) or _implicit(reader) or _parts(reader)


def _implicit(reader: _Reader) -> Formula | None:
    """What Λ moves, and the equation for Λ."""
    (v,) = reader.operation.vectors
    for sample in reader.samples:
        L = np.linalg.pinv(sample.named("G")) @ (sample.results[0] - sample.named(f"{v}_G"))
        sample._kept["Λ", 0.0], sample._kept["Λᵀ", 0.0] = L, L.mT
    fits = []
    for i, part in enumerate("GH"):
        words = [Word((f"{v}_{part}",), part), Word((part, "Λ"), part), Word((part, "Λᵀ"), part)]
        fits.append(_attempt(reader, reader.results(i), words, 0.0))
    for products in (_equation(v, reader.letters), _any_equation(v)):
        relation = _null_vector(reader, [Word(names, "G") for names in products])
        if relation is not None and any("Λ" in word for word in relation):
            return _formula(reader, [None if fit is None else (fit, 0.0) for fit in fits], relation=relation)
    return None


def _equation(v: str, letters: Sequence[str]) -> list[tuple[str, ...]]:
    """The products in an equation for Λ, of one degree."""
    if "M_G" in letters:  # S Λ M_G + M_H Λ T, between inv and mix
        weights = ("M_G", "M_H")
        found = [names for M in weights for N in ("S", "T") for names in ((M, "Λ", N), (N, "Λ", M))]
        return found + [names for M in weights for C in _of_one(v) for names in ((M, C), (C, M))]
    of_G, of_H = ([name for name in letters if name[:1] == kind and "⁻¹" not in name] for kind in "ST")
    pairs = [pair for S, T in itertools.product(of_G, of_H) for pair in ((S, T), (T, S))]
    found = [names for M, N in pairs for names in ((M, N, "Λᵀ"), (M, "Λᵀ", N), ("Λᵀ", M, N))]
    beside = {"G": of_H, "H": of_G}
    return found + [names for C in _of_one(v) for M in beside[C[-1]] for names in ((M, C), (C, M))]


def _any_equation(v: str) -> list[tuple[str, ...]]:
    """Products of all degrees up to two Gram matrices."""
    pairs = itertools.product(("", "S", "T"), repeat=2)
    found = [names for M, N in pairs for names in ((M, N, "Λᵀ"), (M, "Λᵀ", N), ("Λᵀ", M, N))]
    found += [(M, C, N) for C in _of_one(v) for M, N in (("", ""), ("S", ""), ("T", ""), ("", "S"), ("", "T"))]
    return list(dict.fromkeys(tuple(filter(None, names)) for names in found))


def _null_vector(reader: _Reader, words: list[Word]) -> Coefficients | None:
    """The one combination of words that vanishes, as fractions with the first one 1."""
    A = _columns(words, reader.samples[0], reader.relaxation)
    sizes, slack = np.maximum(np.linalg.norm(A, axis=0), 1e-300), 100.0 * reader.tolerance
    _, s, V = np.linalg.svd(A / sizes, full_matrices=False)
    if not s[-1] <= slack * s[0] < 1e3 * slack * s[0] < s[-2]:
        return None
    c = V[-1] / sizes
    c = c / np.max(np.abs(c))
    exact = _fractions(c / c[np.argmax(np.abs(c) > 1e-3)], max(reader.tolerance, 1e-8))
    if exact is None:
        return None
    for sample in reader.samples:
        A = _columns(words, sample, reader.relaxation) * exact
        if np.linalg.norm(np.sum(A, axis=1)) > slack * np.linalg.norm(A):
            return None
    return {str(word): c for word, c in zip(words, exact, strict=True) if c}


def _hessian(reader: _Reader) -> Formula | None:
    """Both parts at once: words of w, and of e and v together, projected; or as they are."""
    e, w, v = reader.operation.vectors
    degrees = dict(zip("GH", reader.degrees(), strict=True))

    def words(part: str, kind: str) -> list[Word]:
        found = [*_words(part, [w], reader.letters), *_words(part, [e, v], reader.letters)]
        return [Word((f"{name}_{part}",), part, kind) for name in reader.made] + [
            Word(one.names, part, kind)
            for one in found
            if (one.names[0] != part or f"{e}_" in str(one)) and (degrees[part] is not None or len(one.matrices) < 3)
        ]

    plain = [_read_part(reader, reader.results(i), words(part, "tall"), degrees, False) for i, part in enumerate("GH")]
    if None not in plain:
        return _formula(reader, plain)
    both = [word for part in "GH" for word in words(part, "projected")
            if word.is_made or degrees[part] in (None, word.degrees)]  # fmt: skip
    fit = _read_part(reader, [_flat(sample.results) for sample in reader.samples], both, degrees, False)
    if fit is None:
        return None
    split = [{word: c for word, c in fit[0].items() if word.split(" ")[0][-1] == part} for part in "GH"]
    return _formula(reader, [(one, 0.0) for one in split], projected=True)


_SPECIAL = {"horizontal_projection": _projection, "riemannian_hessian": _hessian}


def _curve(reader: _Reader, order: Any) -> Formula | None:
    """Power by power of t, whose coefficients are read one after another."""
    rest = (order,) if "order" in reader.operation.extra else ()
    series = []
    for sample in reader.samples:
        places = [np.stack(parts) for parts in zip(*(reader.numbers(sample, (t, *rest)) for t in _TIMES), strict=True)]
        terms = [np.tensordot(np.linalg.pinv(_POWERS), place, 1) for place in places]
        if not all(reader.explains(np.tensordot(_POWERS, x, 1), y) for x, y in zip(terms, places, strict=True)):
            return None
        series.append(terms)
    (v,) = reader.operation.vectors
    found: list[Fit] = [({}, 0.0), ({}, 0.0)]
    for (i, part), power in itertools.product(enumerate("GH"), range(_POWERS.shape[1])):
        terms = [one[i][power] for one in series]
        if np.linalg.norm(terms[0]) <= 30.0 * reader.tolerance * np.linalg.norm(series[0][i]):
            continue
        words = [Word((f"{name}_{part}",), part) for name in reader.made]
        words += [word for vectors in ([], [v], [v, v]) for word in _words(part, vectors, reader.letters)]
        fit = _read_part(reader, terms, words)
        if fit is None:
            return None
        time = ("", "t ", "t² ", "t³ ", "t⁴ ")[power]
        found[i] = {**found[i][0], **{time + word: c for word, c in fit[0].items()}}, max(found[i][1], fit[1])
    return _formula(reader, found)


def _place(reader: _Reader, times: Sequence[float]) -> Formula | None:
    """A place of a curve, in θ, tv and t²Γ(v, v)."""
    for sample, t in zip(reader.samples, times, strict=True):
        sample.vectors |= {"t v": t * sample.vectors["v"], "t² Γ(v,v)": t * t * sample.vectors["Γ(v,v)"]}
    words = {part: [Word((name,), part) for name in (part, f"t v_{part}", f"t² Γ(v,v)_{part}")] for part in "GH"}
    fits = [_attempt(reader, reader.results(i), words[part], 0.0) for i, part in enumerate("GH")]
    return _formula(reader, [None if fit is None else (fit, 0.0) for fit in fits])


def _moderate(rule: Rule, start: Start) -> float:
    """The largest size of the loss with which one step is short, so that a decay of the weights hides nothing."""
    size = np.linalg.norm(start.G @ start.H.mT)
    lengths = {scale: rule.walk(start, scale, 1).travelled[-1] / size for scale in SCALES}
    return max((scale for scale, length in lengths.items() if length <= _SHORT), default=min(SCALES))


def read_step(rule: Rule) -> Formula | None:
    """To what the first step of an optimiser changes G and H; None if no words explain that."""
    samples, scale = [], _moderate(rule, rule.start(Features()))
    for (n, m, h), count in _SHAPES:
        starts = [rule.start(Features(n=n, m=m, h=h, draw=i)) for i in range(count)]
        walks = [rule.walk(start, scale, 1) for start in starts]
        before, after = (Pair(*(np.stack(F) for F in zip(*((x.G[k], x.H[k]) for x in walks), strict=True)))
                         for k in (0, 1))  # fmt: skip
        E = np.stack([slope(G @ H.mT, one.Y, scale, one.magnitude) for one, G, H in zip(starts, *before, strict=True)])
        e = Pair(E @ before.H, E.mT @ before.G)
        samples.append(Sample(pair_metric("mix").at(before), {"e": e}, tuple(after - before)))
    reader = _Reader(None, OPERATIONS["riemannian_gradient"], "mix", rule.precision.name, 0.0, samples)
    reader.exact = _decimals
    fits: list[Fit | None] = []
    for i, part in enumerate("GH"):
        words = [word for vectors in ([], ["e"]) for word in _words(part, vectors, reader.letters)]
        change = _read_part(reader, reader.results(i), words)
        fits.append(change and ({part: 1.0 + change[0].pop(part, 0.0), **change[0]}, change[1]))
    return _formula(reader, fits)


def read_one(
    backend: Backend, name: str, metric: str, dtype: str = "float64", relaxation: float = 0.0
) -> Formula | None:
    """The formula of one value (``"geodesic_2"``) or function; None if no words explain its numbers."""
    reader = _Reader(backend, OPERATIONS[_function(name)], metric, dtype, relaxation)
    with np.errstate(all="ignore"):
        if reader.operation.extra:
            return _curve(reader, VALUES[name].order if name in VALUES else None)
        for sample in reader.samples:
            sample.results = reader.numbers(sample)
            if not all(np.isfinite(part).all() for part in sample.results):
                return None
        return _SPECIAL.get(reader.operation.name, _parts)(reader)


def read_at(value: Value, scenes: Sequence[Scene], results: Iterable[Parts]) -> Formula | None:
    """The formula that gives results at points, where the first has many more numbers than the formula has words."""
    scene = scenes[0]
    if value.operation.scalar or scene.metric not in PAIR_METRICS or scene.point.sizes[2] < 2:
        return None
    samples = [_flat_sample(value, *one) for one in zip(scenes, results, strict=True)]
    reader = _Reader(None, value.operation, scene.metric, scene.dtype, scene.relaxation, samples)
    with np.errstate(all="ignore"):
        if value.operation.extra:
            return _place(reader, [one.time(value) for one in scenes])
        return _SPECIAL.get(value.name, _parts)(reader)


def _flat_sample(value: Value, scene: Scene, result: Parts) -> Sample:
    """One batch of the blocks of a point, with a result there."""

    def flat(pair: Iterable[Array]) -> Pair:
        return Pair.unchecked(*(x.reshape(-1, *x.shape[-2:]) for x in pair))

    inputs = map(flat, scene.inputs(value.operation))
    vectors = dict(zip(value.operation.vectors, inputs, strict=True))
    return Sample(scene.space.metric.at(flat(scene.point)), vectors, tuple(flat(result)))


@cache
def right_formula(name: str, metric: str, relaxation: float = 0.0) -> Formula | None:
    """What `refgeo.paper` computes, read in the same way; None where nothing can be read."""
    from refgeo import paper

    function = _function(name)
    relaxed = SimpleNamespace(**{function: lambda *a: getattr(paper, function)(*a, relaxation=relaxation)})
    try:
        return read_one(Backend(relaxed, "paper"), name, metric, relaxation=relaxation)
    except NoResult:
        return None


def _function(name: str) -> str:
    return VALUES[name].operation.name if name in VALUES else name


class Readings(dict[tuple[str, str], Formula | None]):
    """The formulas that a backend computes, by function (of geodesics by value, "geodesic_2") and metric; that of an
    optimiser's first step has none, ``readings["step", ""]``.

    Attributes
    ----------
    silent : dict
        Why there is nothing to read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.silent: dict[tuple[str, str], str] = {}

    def __str__(self) -> str:
        lines = []
        for (name, metric), formula in self.items():
            note = formula.note if formula is not None else ""
            lines.append((f"{name}[{metric}]" if metric else name) + (f"   ({note})" if note else ""))
            said = self.silent.get((name, metric), UNREAD)
            lines += [f"    {line}" for line in (formula.lines() if formula is not None else [said])]
        return "\n".join(lines or ["nothing to read: the implementation has none of these functions"])


def read(
    backend: Any,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    functions: Iterable[str] | None = None,
    dtype: str = "float64",
    relaxation: float = 0.0,
    timeout: float = TIMEOUT,
    options: Mapping[str, Any] | None = None,
) -> Readings:
    """Read the formulas that a backend computes, right or wrong, from its numbers.

    Parameters
    ----------
    backend : module, object, str or Backend
        As for `refgeo.check`. It need compute no member of the family: `metrics` are only the names that it gets.
    metrics : iterable of str
    functions : iterable of str, optional
        Functions (``"geodesic"``), values (``"geodesic_2"``), or ``"step"``: the first step of an optimiser. Default:
        all that it has.
    dtype : str
        The precision of the arrays that it gets; in single precision readings are good to five digits or so.
    relaxation : float
        A known ε: S_ε = S + εI and T_ε = T + εI are words, too.
    timeout : float
        Seconds that one call may take.
    options : mapping, optional
        Of an optimiser: keyword arguments.

    Returns
    -------
    Readings
        ``readings["christoffel", "inv"]`` is a `Formula` with ``.G``, ``.H`` and ``.relation``, or None.

    Examples
    --------
    >>> from refgeo import paper
    >>> readings = read(paper, metrics=["inv"], functions=["riemannian_gradient", "horizontal_projection"])
    >>> print(readings)
    horizontal_projection[inv]
        G: v_G + G Λ
        H: v_H − H Λᵀ
        S T Λᵀ + Λᵀ S T + v_GᵀG T − S Hᵀv_H = 0
    riemannian_gradient[inv]
        G: e_G S
        H: e_H T
    """
    one_of("dtype", dtype, PRECISIONS)
    relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
    wanted = [pair_metric(metric, argument="metrics").name for metric in listed(metrics)]
    everything = [*OPERATIONS, *VALUES, "step"]
    asked = [one_of("functions", name, everything) for name in listed(functions or everything)]
    loaded = Backend.of(backend, timeout)
    found = Readings()
    try:
        for name, metric in itertools.product(READABLE, wanted):
            if loaded.provides(_function(name)) and (name in asked or _function(name) in asked):
                try:
                    found[name, metric] = read_one(loaded, name, metric, dtype, relaxation)
                except NoResult as error:
                    found[name, metric], found.silent[name, metric] = None, str(error)
        if "step" in asked and any(map(loaded.provides, UPDATE_RULES)):
            points, function = Points(dtype=dtype, relaxation=relaxation), next(filter(loaded.provides, UPDATE_RULES))
            with np.errstate(all="ignore"):
                found["step", ""] = read_step(Rule(loaded, function, points, options or {}))
    finally:
        if loaded is not backend:
            loaded.close()
    return found
