r"""It reads a backend's formula from its numbers: which words, with which coefficients, give what it returns.

Every operation is linear in each of its vectors and, at a given point, a sum of *words*: products of G or H or a vector,
of S = GᵀG, T = HᵀH, their inverses, and of one small matrix that holds the other vectors, such as ``a_G S⁻¹ b_GᵀG``.
Least squares over the words' values at random points give coefficients. A reading counts only if these are fractions of
small numbers, and if with them the words give the backend's numbers at *other* points of *other* shapes, to rounding.
Otherwise nothing is said.

The smallest dictionary that explains the numbers is taken: words of the part's own half and of the degree that the
numbers have in G and in H, then words of both halves, then of all degrees, and at last with S + εI and T + εI in the
place of S and T, ε found by a search in one dimension. A geodesic is read power by power of t. The formula of a
projection is implicit: r = (v_G + GΛ, v_H − HΛᵀ), and what is read is the linear equation that Λ satisfies, the one null
vector of the words of an equation. The Hessian is horizontal, so its words are projected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import scipy  # its modules load where they are used

from refgeo.arguments import Array, listed, number, one_of
from refgeo.conformance.backend import TIMEOUT, Backend, BackendFailure
from refgeo.conformance.precision import PRECISIONS, representable
from refgeo.metrics.pair import PAIR_METRICS, PairTangentSpace, pair_metric
from refgeo.operations import OPERATIONS, VALUES, Operation, Parts
from refgeo.pair import Pair

Coefficients = dict[str, float]
READABLE = (*VALUES, "retraction")
_SHAPES = (((7, 6, 3), 32), ((9, 5, 4), 3), ((5, 7, 2), 3))
"""Shapes and numbers of points: the first are fitted, the others are fresh."""
_SCALARS = 4
"""So many times as many points where a result is one number."""
_TIMES = (0.5, -0.75, 1.25, 2.0, -1.5, 0.25)
_POWERS = 5
_DAMPED = (1e-13, 3.0)
"""ε is looked for between these."""


@dataclass(frozen=True)
class Formula:
    """What a backend computes.

    Attributes
    ----------
    G, H : dict
        From a word, factors separated by spaces, to its coefficient. Of a number: its terms with vectors' G and H parts.
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
    >>> from refgeo import formulas
    >>> formula = read(formulas, metrics=["mix"], functions=["christoffel"])["christoffel", "mix"]
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
        said = []
        for mine, theirs in ((self.G, right.G), (self.H, right.H), (self.relation or {}, right.relation or {})):
            mine = mine if right.epsilon or not self.epsilon else {w.replace("_ε", ""): c for w, c in mine.items()}
            both = [word for word in theirs if word in mine and mine[word] != theirs[word]]
            turned = [word for word in both if mine[word] == -theirs[word]]
            said += [f"the sign of {' and of '.join(turned)}"] if turned else []
            said += [
                f"the factor of {word}: {_fraction(mine[word])}, not {_fraction(theirs[word])}"
                for word in both
                if word not in turned
            ]
            missing = {word: c for word, c in theirs.items() if word not in mine}
            more = {word: c for word, c in mine.items() if word not in theirs}
            if missing and sorted(missing.values()) == sorted(more.values()):
                said.append(f"{_sum(more)} stands where {_sum(missing)} belongs")
                continue
            said += [f"{_sum(missing)} is missing"] if missing else []
            said += [f"{_sum(more)} does not belong there"] if more else []
        if self.projected != right.projected:
            said.append("it is not projected" if right.projected else "it is projected")
        if self.epsilon and self.epsilon != right.epsilon:
            where = f"not {right.epsilon:.3g}" if right.epsilon else "in the place of S and T"
            said.append(f"S + εI and T + εI with ε = {self.epsilon:.3g}, {where}")
        return "; ".join(said)


_SIGNS = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(3, 4): "¾", Fraction(1, 3): "⅓", Fraction(2, 3): "⅔"}


def _fraction(value: float) -> str:
    size = Fraction(abs(value)).limit_denominator(1000)
    return ("−" if value < 0 else "") + _SIGNS.get(size, str(size))


def _sum(words: Coefficients) -> str:
    """A sum of words as people write it.

    Examples
    --------
    >>> _sum({"v_G": 1.0, "G Λ": -1.5})
    'v_G − 3/2 G Λ'
    """
    text = ""
    for word, c in words.items():
        factor = "" if abs(c) == 1.0 else _fraction(abs(c)) + " "
        text += (" − " if c < 0 else " + ") if text else ("−" if c < 0 else "")
        text += factor + word
    return text or "0"


# Numbers at random points ----------------------------------------------------------------------------------------------


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
    _kept: dict[Any, Any] = field(default_factory=dict)

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
            self._kept[key] = self._value(name, epsilon)
        found: Array = self._kept[key]
        return found

    def _value(self, name: str, epsilon: float) -> Array:
        if name.endswith("⁻¹"):
            return np.asarray(np.linalg.inv(self.named(name[:-2], epsilon)))
        if name in ("G", "H"):
            return np.asarray(getattr(self.space.point, name))
        if name[0] in "ST":
            factor = self.named("G" if name[0] == "S" else "H")
            return np.asarray(factor.mT @ factor + ("ε" in name) * epsilon * np.eye(factor.shape[-1]))
        if name[0] == "M":  # M_G = S⁻¹(ST)ˢ
            S, T = (self.named(x) for x in ("ST" if name == "M_G" else "TS"))
            values, Q = np.linalg.eig(S @ T)
            power = (Q * values[..., None, :] ** self.space.metric.s) @ np.linalg.inv(Q)
            return np.asarray(np.linalg.solve(S, power.real))
        if "ᵀ" in name:
            left, right = name.split("ᵀ")
            return np.asarray(self.named(left).mT @ self.named(right))
        vector, part = name.split("_")
        return np.asarray(getattr(self.vectors[vector], part))


def _drawn(operation: Operation, metric: str, dtype: str, relaxation: float, horizontal: bool = False) -> list[Sample]:
    """Well-conditioned points of the shapes, with random vectors."""
    samples = []
    for (n, m, h), count in _SHAPES:
        rng = np.random.default_rng([n, m, h])
        count = count * _SCALARS if operation.scalar else count
        factors = [
            np.linalg.qr(rng.standard_normal((count, rows, h)))[0]
            @ (rng.uniform(0.6, 1.7, (count, h, 1)) * np.linalg.qr(rng.standard_normal((count, h, h)))[0])
            for rows in (n, m)
        ]
        space = pair_metric(metric, relaxation).at(representable(Pair(*factors), dtype))
        vectors = {
            name: representable(Pair(*(0.6 * rng.standard_normal(F.shape) for F in space.point)), dtype)
            for name in operation.vectors
        }
        if horizontal:
            vectors = {name: representable(space.horizontal_projection(v), dtype) for name, v in vectors.items()}
        samples.append(Sample(space, vectors))
    return samples


class _Reader:
    """The numbers of one function of a backend, block by block."""

    def __init__(self, backend: Backend, operation: Operation, metric: str, dtype: str, relaxation: float) -> None:
        self.backend, self.operation, self.metric, self.precision = backend, operation, metric, PRECISIONS[dtype]
        self.samples = _drawn(operation, metric, dtype, relaxation)

    def numbers(self, sample: Sample, extra: tuple[Any, ...] = ()) -> Parts:
        """The results at every point of a sample."""
        found = []
        for i in range(sample.space.point.block_shape[0]):
            pairs = [sample.space.point, *(sample.vectors[name] for name in self.operation.vectors)]
            arrays = [factor[i].astype(self.precision.carrier) for pair in pairs for factor in pair]
            shapes = self.operation.shapes(Pair(*arrays[:2]))
            parts, _ = self.backend.call(self.operation.name, self.metric, arrays, extra, shapes)
            found.append(parts)
        return tuple(np.array(part) for part in zip(*found, strict=True))

    @property
    def tolerance(self) -> float:
        """How closely the words must give the numbers, beside their size."""
        return float(min(2e4 * self.precision.roundoff, 300.0 * self.precision.roundoff**0.9, 0.02))

    @property
    def digits(self) -> int:
        """That this is."""
        return int(-np.log10(self.tolerance) + 1.5)


# Words -------------------------------------------------------------------------------------------------------------


Word = tuple[str, ...]
_LETTERS = ("S", "T", "S⁻¹", "T⁻¹")
_COVECTORS = {one.name for operation in OPERATIONS.values() for one in operation.inputs if one.type == "covector"}


def _letters(metric: str, relaxation: float) -> tuple[str, ...]:
    """Small matrices of the point."""
    plain = ("", *_LETTERS)
    if metric not in PAIR_METRICS:
        return (*plain, "M_G", "M_H", "M_G⁻¹", "M_H⁻¹")
    return plain if not relaxation else ("", *map(_shifted, _LETTERS), *_LETTERS)


def _of_one(v: str) -> tuple[str, ...]:
    return f"{v}_GᵀG", f"Gᵀ{v}_G", f"{v}_HᵀH", f"Hᵀ{v}_H"


def _of_two(a: str, b: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{x}_{part}ᵀ{y}_{part}" for part in "GH" for x, y in ((a, b), (b, a))))


def _tall(part: str, vectors: Sequence[str], letters: Sequence[str]) -> Iterator[Word]:
    """Words of the shape of one part, linear in each of at most two vectors, simplest first."""
    pairs = itertools.product(letters, letters, ("",))
    triples = ((M, N, K) for M, N, K in itertools.product(letters, letters[1:], letters[1:]) if N[0] != K[0])
    around = sorted(itertools.chain(pairs, triples), key=lambda names: sum(map(bool, names)))
    alone = [pair[:2] for pair in around if not pair[2]]
    if not vectors:
        yield from ((part, *pair) for pair in alone)
    if len(vectors) == 1:
        yield from ((f"{vectors[0]}_{part}", *pair) for pair in alone)
        yield from ((part, M, C, *N) for C in _of_one(vectors[0]) for M, *N in around)
    if len(vectors) == 2:  # also of formulas that take one of them twice
        orders = dict.fromkeys((tuple(vectors), tuple(reversed(vectors))))
        yield from ((f"{x}_{part}", M, C, *N) for x, y in orders for C in _of_one(y) for M, *N in around)
        yield from ((part, M, C, *N) for C in _of_two(*vectors) for M, *N in around)


def _several(vectors: Sequence[str]) -> list[Sequence[str]]:
    """The vectors of a formula; of two also one of them twice, and none of the other."""
    return [vectors, *([x, x] for x in vectors if len(vectors) == 2)]


def _text(word: Word) -> str:
    return " ".join(filter(None, word))


def _degrees(word: Word) -> tuple[int, int]:
    """In G and in H, parts of vectors counted with the factors, those of covectors against them.

    Examples
    --------
    >>> _degrees(("a_G", "S⁻¹", "b_GᵀG")), _degrees(("e_G", "b_HᵀH"))
    ((1, 0), (-1, 2))
    """
    degree = {"G": 0, "H": 0}
    for name in filter(None, word):
        if name[0] == "M":  # of a metric between, whose degrees are broken
            continue
        if name[0] in "ST":
            degree["G" if name[0] == "S" else "H"] += -2 if name.endswith("⁻¹") else 2
        else:
            for one in name.split("ᵀ"):
                degree[one[-1]] += -1 if one[:-2] in _COVECTORS else 1
    return degree["G"], degree["H"]


def _halves(word: Word) -> set[str]:
    """Whose small matrices a word has, "G" or "H"."""
    halves = {"S": "G", "T": "H"}
    return {halves.get(name[0], name.removesuffix("⁻¹")[-1]) for name in word[1:] if name}


def _sides(part: str, word: Word) -> set[str]:
    """Whether a word of one part has small matrices of its own half, or of the other."""
    return {"own" if one == part else "other" for one in _halves(word)}


def _value(word: Word, sample: Sample, epsilon: float) -> Array:
    names = list(filter(None, word))
    found = sample.named(names[0], epsilon)
    for name in names[1:]:
        found = found @ sample.named(name, epsilon)
    return found


# Least squares over words -----------------------------------------------------------------------------------------------


def _fitted(columns: Array, numbers: Array, tolerance: float) -> dict[int, float] | None:
    """The coefficients of the columns that give the numbers, as fractions; None if there are none.

    Columns come in the order of preference: what depends on those before it is left out.
    """
    sizes = np.linalg.norm(columns, axis=0)
    used = np.flatnonzero(sizes > 0.0)
    R = np.linalg.qr(columns[:, used] / sizes[used], mode="r")
    used = used[: len(R)][np.abs(np.diagonal(R)) > 1e-7][: len(numbers) // 2]
    if len(used) == 0 or not np.any(numbers):
        return {} if not np.any(numbers) else None
    for _ in range(4):  # what is next to nothing beside the others is left out, and the rest fitted again
        found = np.linalg.lstsq(columns[:, used] / sizes[used], numbers, rcond=None)[0]
        if np.linalg.norm(columns[:, used] / sizes[used] @ found - numbers) > 3.0 * tolerance * np.linalg.norm(numbers):
            return None
        large = np.abs(found) > 1e-3 * np.max(np.abs(found))
        found, used = found[large], used[large]
        if large.all():
            break
    coefficients = {}
    most, slack = (1000, 1e-9) if tolerance < 1e-9 else (24, 0.1 / 24**2)
    for i, c in zip(used, found / sizes[used], strict=True):
        nearest = Fraction(float(c)).limit_denominator(most)
        if abs(float(nearest) - c) > slack * max(1.0, abs(c)):
            return None
        coefficients[int(i)] = float(nearest)
    return coefficients


def _explains(predicted: Array, numbers: Array, tolerance: float) -> bool:
    size = float(np.linalg.norm(numbers))
    return bool(np.linalg.norm(predicted - numbers) <= tolerance * size) if size else not np.any(predicted)


Fit = tuple[Coefficients, float]
"""Words with coefficients, and ε."""


def _read_part(
    reader: _Reader,
    parts: Sequence[Array],
    dictionary: list[Word],
    half: Callable[[Word], set[str]],
    value: Callable[[Word, Sample, float], Array],
    degrees: tuple[int, int] | None,
    text: Callable[[Word], str] = _text,
    damping: bool = True,
) -> Fit | None:
    """One part of the results, of each sample, in the smallest dictionary that explains it."""
    first, *fresh = reader.samples
    relaxation = first.space.metric.relaxation

    def attempt(words: list[Word], epsilon: float) -> Coefficients | None:
        columns = np.array([value(word, first, epsilon).ravel() for word in words]).T
        found = _fitted(columns, parts[0].ravel(), reader.tolerance)
        if found is None:
            return None
        for sample, part in zip(fresh, parts[1:], strict=True):
            predicted = sum((c * value(words[i], sample, epsilon) for i, c in found.items()), np.zeros_like(part))
            if not _explains(predicted, part, reader.tolerance):
                return None
        return {text(words[i]): c for i, c in found.items()}

    short = [word for word in dictionary if not any(word[4:]) or text is not _text]
    halves = [[word for word in short if half(word) <= {one}] for one in ("own", "other")]
    tiers = [*halves, short]
    if degrees is not None:  # of which few words are
        right = [[word for word in tier if _degrees(word) == degrees] for tier in (*tiers, dictionary)]
        tiers = [*right, *tiers]
    for words in filter(None, tiers):
        coefficients = attempt(words, relaxation)
        if coefficients is not None:
            return coefficients, 0.0
    if not damping or not any("S" in word or "S⁻¹" in word for word in dictionary):
        return None
    for words in tiers[-3:]:  # with one matrix: of two, T⁻¹T⁻¹ is what ε does to T⁻¹ at first order
        words = [
            word
            for word in words
            if sum(name in _LETTERS for name in word) < 2 and not any("ε" in name for name in word)
        ]
        shifted = [tuple(_shifted(name) for name in word) for word in words]
        epsilon = _damping(lambda x, words=shifted: _misfit(words, first, parts[0], value, x))  # type: ignore[misc]
        coefficients = attempt(shifted, epsilon) if epsilon is not None else None
        if coefficients is not None and any("ε" in word for word in coefficients):
            return coefficients, epsilon or 0.0
    return None


def _shifted(name: str) -> str:
    return {"S": "S_ε", "T": "T_ε", "S⁻¹": "S_ε⁻¹", "T⁻¹": "T_ε⁻¹"}.get(name, name)


def _misfit(
    words: list[Word], sample: Sample, part: Array, value: Callable[[Word, Sample, float], Array], epsilon: float
) -> float:
    columns = np.array([value(word, sample, epsilon).ravel() for word in words]).T
    columns = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    found = np.linalg.lstsq(columns, part.ravel(), rcond=1e-9)[0]
    return float(np.linalg.norm(columns @ found - part.ravel()) / max(np.linalg.norm(part), 1e-300))


def _damping(misfit: Callable[[float], float]) -> float | None:
    """The ε that explains the numbers best."""
    grid = np.linspace(*np.log10(_DAMPED), 40)
    best = float(grid[int(np.argmin([misfit(10.0**x) for x in grid]))])
    step = float(grid[1] - grid[0])
    found = scipy.optimize.minimize_scalar(
        lambda x: misfit(10.0**x), bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-13}
    )
    nearest = float(f"{10.0**found.x:.4g}")  # what somebody has written
    return nearest if misfit(nearest) <= 2.0 * found.fun else float(10.0**found.x)


# Each kind of result -----------------------------------------------------------------------------------------------------


def _degree(reader: _Reader, extra: tuple[Any, ...] = ()) -> list[tuple[int, int] | None]:
    """The degrees of both parts in G and in H, exactly, where they have one."""
    if reader.metric not in PAIR_METRICS:  # where words have broken ones
        return [None, None]
    sample = reader.samples[0]
    here = reader.numbers(sample, extra)
    found: list[list[int | None]] = [[] for _ in here]
    for scales in ((2.0, 1.0), (1.0, 2.0)):
        there = reader.numbers(sample.scaled(*scales), extra)
        for degrees, x, y in zip(found, here, there, strict=True):
            size, other = np.linalg.norm(x), np.linalg.norm(y)
            power = int(np.round(np.log2(other / size))) if size and other else 0
            degrees.append(power if _explains(2.0**power * x, y, reader.tolerance) else None)
    return [None if None in degrees else (degrees[0], degrees[1]) for degrees in found]  # type: ignore[misc]


def _read_vector(reader: _Reader, damping: bool = True) -> Formula | None:
    """A result that is a vector and explicit."""
    letters = _letters(reader.metric, reader.samples[0].space.metric.relaxation)
    fits: list[Fit | None] = []
    for i, (part, degrees) in enumerate(zip("GH", _degree(reader), strict=True)):
        words = [word for vectors in _several(reader.operation.vectors) for word in _tall(part, vectors, letters)]
        results = [sample.results[i] for sample in reader.samples]
        fits.append(_read_part(reader, results, words, partial(_sides, part), _value, degrees, damping=damping))
    return _formula(reader, fits)


def _formula(reader: _Reader, fits: Sequence[Fit | None], **more: Any) -> Formula | None:
    if None in fits:
        return None
    (G, one), (H, other) = fits  # type: ignore[misc]
    relaxation = reader.samples[0].space.metric.relaxation
    epsilon = max(one, other) or relaxation * any("ε" in word for word in (*G, *H))
    return Formula(G, H, epsilon=epsilon, digits=reader.digits, **more)


def _read_scalar(reader: _Reader) -> Formula | None:
    letters = _letters(reader.metric, reader.samples[0].space.metric.relaxation)
    pairs = sorted(itertools.product(letters, letters), key=lambda pair: sum(map(bool, pair)))
    words: list[Word] = [
        (M, N, f"{a}_{part}ᵀ{b}_{part}")
        for a, b in _several(reader.operation.vectors)
        for part in "GH"
        for M, N in pairs
    ]

    def value(word: Word, sample: Sample, epsilon: float) -> Array:
        return np.asarray(np.trace(_value(word, sample, epsilon), axis1=-2, axis2=-1))

    results = [sample.results[0] for sample in reader.samples]
    fit = _read_part(
        reader, results, words, lambda word: {"own"} if len(_text(word).split()) < 3 else {"own", "other"}, value,
        _degree(reader)[0], lambda word: f"tr({_text(word)})",
    )  # fmt: skip
    if fit is None:
        return None
    G = {word: c for word, c in fit[0].items() if word.endswith("G)")}
    H = {word: c for word, c in fit[0].items() if word not in G}
    return _formula(reader, [(G, fit[1]), (H, fit[1])])


def _read_projection(reader: _Reader) -> Formula | None:
    return _read_vector(reader, damping=False) or _read_relation(reader) or _read_vector(reader)


def _read_relation(reader: _Reader) -> Formula | None:
    """v + what Λ moves, and the equation for Λ."""
    (v,) = reader.operation.vectors
    for sample in reader.samples:
        G, v_G = sample.named("G"), sample.named(f"{v}_G")
        L = np.linalg.pinv(G) @ (sample.results[0] - v_G)
        sample._kept["Λ", 0.0], sample._kept["Λᵀ", 0.0] = L, L.mT
    fits = []
    for i, part in enumerate("GH"):
        words = [(f"{v}_{part}",), (part, "Λᵀ"[: 1 + i]), (part, "Λᵀ"[: 2 - i])]
        results = [sample.results[i] for sample in reader.samples]
        fits.append(_read_part(reader, results, words, lambda word: {"own"}, _value, None, damping=False))
    letters = _letters(reader.metric, reader.samples[0].space.metric.relaxation)
    for words in (_equation(v, letters), _any_equation(v)):
        relation = _null_vector(reader, words)
        if relation is not None and any("Λ" in word for word in relation):
            return _formula(reader, fits, relation=relation)
    return None


def _equation(v: str, letters: Sequence[str]) -> list[Word]:
    """The words of an equation for Λ, of one degree."""
    grams = [name for name in letters if name and not name.endswith("⁻¹")]
    ofG, ofH = ([name for name in grams if name[0] == kind] for kind in "ST")
    if "M_G" in grams:  # S Λ M_G + M_H Λ T, between inv and mix
        weights = ("M_G", "M_H")
        words: list[Word] = [
            pair
            for M in weights
            for N in ("S", "T")
            for pair in ((M, "Λ", N), (N, "Λ", M))
        ]
        return words + [pair for M in weights for C in _of_one(v) for pair in ((M, C), (C, M))]
    words = [
        word
        for S, T in itertools.product(ofG, ofH)
        for M, N in ((S, T), (T, S))
        for word in ((M, N, "Λᵀ"), (M, "Λᵀ", N), ("Λᵀ", M, N))
    ]
    for C in _of_one(v):
        words += [pair for M in (ofH if C.endswith("G") and C[-2:] != "_H" and "H" not in C else ofG) for pair in ((M, C), (C, M))]
    return words


def _any_equation(v: str) -> list[Word]:
    """Words of all degrees up to two Gram matrices."""
    pairs = list(itertools.product(("", "S", "T"), repeat=2))
    words: list[Word] = [word for M, N in pairs for word in ((M, N, "Λᵀ"), (M, "Λᵀ", N), ("Λᵀ", M, N))]
    words += [word for C in _of_one(v) for M in ("", "S", "T") for word in ((M, C), (C, M))]
    return list({_text(word): word for word in words}.values())


def _null_vector(reader: _Reader, words: list[Word]) -> Coefficients | None:
    """The one combination of words that vanishes, as fractions with the largest one 1."""
    first, *fresh = reader.samples
    epsilon = first.space.metric.relaxation

    def columns(sample: Sample) -> Array:
        return np.array([_value(word, sample, epsilon).ravel() for word in words]).T

    A = columns(first)
    sizes = np.maximum(np.linalg.norm(A, axis=0), 1e-300)
    _, s, V = np.linalg.svd(A / sizes, full_matrices=False)
    slack = 100.0 * reader.tolerance
    if not (s[-1] <= slack * s[0] < 1e3 * slack * s[0] < s[-2]):
        return None
    c = V[-1] / sizes
    c = c / c[np.argmax(np.abs(c))]
    c = c / next(x for x in c if abs(x) > 1e-3)
    found = [Fraction(float(x)).limit_denominator(24) for x in c]
    if any(abs(float(f) - x) > max(1e-6, 1e3 * reader.tolerance) for f, x in zip(found, c, strict=True)):
        return None
    exact = np.array([float(f) for f in found])
    for sample in (first, *fresh):
        A = columns(sample)
        if np.linalg.norm(A @ exact) > slack * np.linalg.norm(A * exact):
            return None
    return {_text(word): float(f) for word, f in zip(words, found, strict=True) if f}


def _read_hessian(reader: _Reader) -> Formula | None:
    """Both parts at once: words of w, and of e and v together, projected; or as they are."""
    e, w, v = reader.operation.vectors
    letters = _letters(reader.metric, reader.samples[0].space.metric.relaxation)

    def words(part: str) -> list[Word]:
        return [word for word in (*_tall(part, [w], letters), *_tall(part, [e, v], letters)) if word[0] != part or e in
                _text(word)]  # fmt: skip

    degrees = _degree(reader)
    plain = [
        _read_part(
            reader, [sample.results[i] for sample in reader.samples], words(part), partial(_sides, part), _value,  # type: ignore[misc]
            degree, damping=False,
        )
        for i, (part, degree) in enumerate(zip("GH", degrees, strict=True))
    ]  # fmt: skip
    if None not in plain:
        return _formula(reader, plain)

    def projected(word: Word, sample: Sample, epsilon: float) -> Array:
        part, *rest = word
        value = _value(tuple(rest), sample, epsilon)
        parts = [value if p == part else np.zeros_like(x) for p, x in zip("GH", sample.results, strict=True)]
        return _flat(sample.space.horizontal_projection(Pair(*parts)))

    both = [
        (part, *word)
        for part, degree in zip("GH", degrees, strict=True)
        for word in words(part)
        if _degrees(word) == degree or (degree is None and not any(word[4:]))
    ]
    results = [_flat(sample.results) for sample in reader.samples]
    fit = _read_part(
        reader, results, both, lambda word: _sides(word[0], word[1:]), projected, None, "|".join, damping=False
    )
    if fit is None:
        return None
    split = {"G": {}, "H": {}}  # type: dict[str, Coefficients]
    for text, c in fit[0].items():
        part, *names = text.split("|")
        split[part][_text(tuple(names))] = c
    return _formula(reader, [(split["G"], 0.0), (split["H"], 0.0)], projected=True)


def _flat(parts: Iterable[Array]) -> Array:
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1)


def _read_curve(reader: _Reader, order: Any) -> Formula | None:
    """Power by power of t, whose coefficients are read one after another."""
    powers = np.array(_TIMES)[:, None] ** np.arange(_POWERS)
    weights = np.linalg.pinv(powers)
    rest = reader.operation.extra[1:] and (order,)
    coefficients = []
    for sample in reader.samples:
        places = [np.stack(parts) for parts in zip(*(reader.numbers(sample, (t, *rest)) for t in _TIMES), strict=True)]
        series = [np.tensordot(weights, place, 1) for place in places]
        for place, terms in zip(places, series, strict=True):
            if not _explains(np.tensordot(powers, terms, 1), place, reader.tolerance):
                return None
        coefficients.append(series)
    (v,) = reader.operation.vectors
    letters = _letters(reader.metric, reader.samples[0].space.metric.relaxation)
    found: dict[str, Coefficients] = {"G": {}, "H": {}}
    epsilon = 0.0
    for power, (i, part) in itertools.product(range(_POWERS), enumerate("GH")):
        values = [series[i][power] for series in coefficients]
        size = np.linalg.norm(coefficients[0][i])
        if np.linalg.norm(values[0]) <= 30.0 * reader.tolerance * size:
            continue
        words = [word for vectors in ([], [v], [v, v]) for word in _tall(part, vectors, letters)]
        fit = _read_part(reader, values, words, partial(_sides, part), _value, None)  # type: ignore[misc]
        if fit is None:
            return None
        time = ("", "t ", "t² ", "t³ ", "t⁴ ")[power]
        found[part] |= {time + word: c for word, c in fit[0].items()}
        epsilon = max(epsilon, fit[1])
    return Formula(found["G"], found["H"], epsilon=epsilon, digits=reader.digits)


_READERS: dict[str, Callable[[_Reader], Formula | None]] = {
    "inner_product": _read_scalar,
    "horizontal_projection": _read_projection,
    "riemannian_gradient": _read_vector,
    "riemannian_hessian": _read_hessian,
    "christoffel": _read_vector,
}


def read_one(
    backend: Backend, name: str, metric: str, dtype: str = "float64", relaxation: float = 0.0
) -> Formula | None:
    """The formula of one value (``"geodesic_2"``) or function; None if no words explain its numbers."""
    operation = VALUES[name].operation if name in VALUES else OPERATIONS[name]
    reader = _Reader(backend, operation, metric, dtype, relaxation)
    with np.errstate(all="ignore"):
        if operation.name in _READERS:
            for sample in reader.samples:
                sample.results = reader.numbers(sample)
                if not all(np.isfinite(part).all() for part in sample.results):
                    return None
            return _READERS[operation.name](reader)
        return _read_curve(reader, VALUES[name].order if name in VALUES else None)


@cache
def right_formula(name: str, metric: str, relaxation: float = 0.0) -> Formula | None:
    """What `refgeo.formulas` computes, read in the same way; None where nothing can be read."""
    from types import SimpleNamespace

    from refgeo import formulas

    function = VALUES[name].operation.name
    relaxed = SimpleNamespace(**{function: lambda *a: getattr(formulas, function)(*a, relaxation=relaxation)})
    try:
        return read_one(Backend(relaxed, "formulas"), name, metric, relaxation=relaxation)
    except (NotImplementedError, BackendFailure):
        return None


class Readings(Mapping[tuple[str, str], Formula | None]):
    """The formulas of a backend by (name of the value, metric); printed, a line each."""

    def __init__(self, backend: str, found: dict[tuple[str, str], Formula | None], silent: dict[Any, str]) -> None:
        self.backend, self._found, self._silent = backend, found, silent

    def __getitem__(self, key: tuple[str, str]) -> Formula | None:
        """The formula, None where nothing explains the numbers."""
        return self._found[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        lines = []
        for (name, metric), formula in self._found.items():
            lines.append(f"{name}[{metric}]" + (f"   ({formula.note})" if formula is not None and formula.note else ""))
            said = self._silent.get((name, metric), "no words explain these numbers")
            lines += [f"    {line}" for line in (formula.lines() if formula is not None else [said])]
        return "\n".join(lines)


def read(
    backend: Any,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    functions: Iterable[str] | None = None,
    dtype: str = "float64",
    relaxation: float = 0.0,
    timeout: float = TIMEOUT,
) -> Readings:
    """Read the formulas that a backend computes, right or wrong, from its numbers.

    Parameters
    ----------
    backend : module, object, str or Backend
        As for `refgeo.check`. It need compute no member of the family: `metrics` are only the names that it gets.
    metrics : iterable of str
    functions : iterable of str, optional
        Functions (``"geodesic"``) or values (``"geodesic_2"``). Default: all that it has.
    dtype : str
        The precision of the arrays that it gets; in single precision readings are good to five digits or so.
    relaxation : float
        A known ε: S_ε = S + εI and T_ε = T + εI are words, too.
    timeout : float
        Seconds that one call may take.

    Returns
    -------
    Readings
        ``readings["christoffel", "inv"]`` is a `Formula` with ``.G``, ``.H`` and ``.relation``, or None.

    Examples
    --------
    >>> from refgeo import formulas
    >>> readings = read(formulas, metrics=["inv"], functions=["riemannian_gradient", "horizontal_projection"])
    >>> print(readings)
    riemannian_gradient[inv]
        G: e_G S
        H: e_H T
    horizontal_projection[inv]
        G: v_G + G Λ
        H: v_H − H Λᵀ
        S T Λᵀ + Λᵀ S T + v_GᵀG T − S Hᵀv_H = 0
    """
    one_of("dtype", dtype, PRECISIONS)
    relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
    wanted = [pair_metric(metric, argument="metrics").name for metric in listed(metrics)]
    names = list(READABLE)
    if functions is not None:
        asked = [one_of("functions", name, [*OPERATIONS, *VALUES]) for name in listed(functions)]
        names = [name for name in READABLE if name in asked or _function(name) in asked]
    loaded = Backend.of(backend, timeout)
    found: dict[tuple[str, str], Formula | None] = {}
    silent: dict[Any, str] = {}
    try:
        for name, metric in itertools.product(names, wanted):
            if not loaded.provides(_function(name)):
                continue
            try:
                found[name, metric] = read_one(loaded, name, metric, dtype, relaxation)
            except (NotImplementedError, BackendFailure) as error:
                found[name, metric] = None
                silent[name, metric] = str(error)
    finally:
        if loaded is not backend:
            loaded.close()
    return Readings(loaded.name, found, silent)


def _function(name: str) -> str:
    return VALUES[name].operation.name if name in VALUES else name
