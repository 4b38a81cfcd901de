"""The features of a test point, by name.

A `Features` value records everything about a test point that an implementation might branch on, divide by, or lose
digits to. With a metric, a dtype and a seed it determines the point, and it round-trips through the point's name. Which
features the points of a run have is decided in `covering_design.py`, where the special levels are, too.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from refgeo.support.records import with_fields

if TYPE_CHECKING:
    from refgeo.conformance.protocol.operations import Operation

MAX_ENCLOSED_SIZE, MAX_INTEGRATED_COLUMNS = 8_000, 8
"""The `enclosed_size` of a block up to which its enclosures take a short time, and the number of columns up to which
exact geodesics are integrated; measured.
"""


def enclosed_size(n: int, m: int, h: int) -> int:
    """Return (n + m)h², to which the time for the enclosure of a block is proportional."""
    return (n + m) * h * h


Overrides = dict[str, Any]
"""Values of some fields of `Features`."""


@dataclass(frozen=True)
class Features:
    """The features that define a test point.

    Field names are part of the names of test points, and are therefore stable.

    Attributes
    ----------
    blocks : tuple of int
        Batch shape, the leading dimensions of every array; () for a single block.
    n, m, h : int
        G is n×h, and H is m×h.
    condition_G, condition_H : float
        Approximate condition number of each factor.
    size_G, size_H : float
        Approximate largest singular value of each factor.
    gap : float
        Relative gap between neighbouring singular values; 0 makes them equal in pairs.
    turn : float
        Rotation of the singular vectors away from the coordinate axes; 0: each factor is a set of columns of a diagonal
        matrix.
    balance : float
        1: the Gram matrices S = GᵀG and T = HᵀH are equal.
    alike : int
        1: G = H.
    identity : int
        1: G = I, which needs n = h; 2: H = I, which needs m = h; 3: both are leading columns of identity matrices.
    normed : int
        1: every column of G and H has length 1.
    shared : str
        What the blocks of a batch have in common: "G", "H" or "all"; "rows": the last rows of G are the first of H.
    uneven, uneven_condition : float
        Size of the first block relative to the second, and condition number of the last block relative to the first.
    zero_rows : int
        Number of zero rows of each factor.
    length : float
        Length of the tangent vectors relative to the point; 0: all are zero.
    ratio : float
        Length of b relative to a; infinite: a is zero.
    part : float
        Size of a vector's G part relative to its H part; infinite: the H part is zero.
    same : int
        1: a and b are the same array object.
    cosine : float, optional
        Cosine of the angle between a and b; None: random.
    vertical : float, optional
        Vertical fraction of a vector; None: random.
    radial : float
        Fraction of a that points along θ; 1: all of it.
    sparse : float
        Fraction of the vectors' entries that are zero.
    empty_rows, empty_blocks : int
        Number of leading rows, or leading blocks, of the vectors that are zero.
    slope : float
        Length of the gradient of the loss whose Hessian is taken, relative to its usual length.
    t : float
        Time to which a geodesic is followed.
    speed : float, optional
        Length of the geodesic relative to the point; None: that of a random vector.
    single : int
        1: float32, whatever the dtype of the run.
    draw : int
        Index of the random numbers, to tell apart points with otherwise equal features.

    Examples
    --------
    >>> Features((2, 3), 6, 7, 2, part=0.0, t=-2.0).name
    '2.3-6x7x2/k3/part=0/t=-2'
    >>> Features.parse("2.3-6x7x2/k1,10000").condition_H
    10000.0
    """

    blocks: tuple[int, ...] = ()
    n: int = 5
    m: int = 4
    h: int = 3
    condition_G: float = 3.0
    condition_H: float = 3.0
    size_G: float = 1.0
    size_H: float = 1.0
    gap: float = 0.05
    turn: float = 1.0
    balance: float = 0.0
    alike: int = 0
    identity: int = 0
    normed: int = 0
    shared: str = ""
    uneven: float = 1.0
    uneven_condition: float = 1.0
    zero_rows: int = 0
    length: float = 1.0
    ratio: float = 1.0
    part: float = 1.0
    same: int = 0
    cosine: float | None = None
    vertical: float | None = None
    radial: float = 0.0
    sparse: float = 0.0
    empty_rows: int = 0
    empty_blocks: int = 0
    slope: float = 1.0
    t: float = 0.75
    speed: float | None = None
    single: int = 0
    draw: int = 0

    @property
    def name(self) -> str:
        """Shape, condition numbers, and every other field that differs from its default."""
        first, second = format_value(self.condition_G), format_value(self.condition_H)
        shape = (f"{'.'.join(map(str, self.blocks))}-" if self.blocks else "") + f"{self.n}x{self.m}x{self.h}"
        settings = (f"{name}={format_value(getattr(self, name))}" for name in self.non_default if name not in _PREFIX)
        return "/".join([shape, f"k{first}" if first == second else f"k{first},{second}", *settings])

    @classmethod
    def parse(cls, name: str) -> Features | None:
        """Invert `name`; None if the name is malformed or describes an infeasible point."""
        shape, *settings = name.split("/")
        match = re.fullmatch(r"(?:((?:\d+\.)*\d+)-)?(\d+)x(\d+)x(\d+)", shape)
        if not match:
            return None
        blocks = tuple(map(int, match[1].split("."))) if match[1] else ()
        values: dict[str, Any] = {"blocks": blocks, **dict(zip("nmh", map(int, match.groups()[1:]), strict=True))}
        try:
            for setting in settings:
                key, equals, text = setting.partition("=")
                if equals and key in _DEFAULTS and key not in _PREFIX:
                    values[key] = text if key == "shared" else ast.literal_eval(text.replace("inf", "2e308"))
                elif setting.startswith("k"):
                    kappas = [float(number) for number in setting[1:].split(",")]
                    values |= {"condition_G": kappas[0], "condition_H": kappas[-1]} if len(kappas) <= 2 else {"h": 0}
                else:
                    return None
        except (ValueError, SyntaxError):
            return None
        features = cls(**values)
        return features if features.is_feasible else None

    @property
    def non_default(self) -> list[str]:
        """Names of the fields that differ from their defaults."""
        return [name for name, default in _DEFAULTS.items() if getattr(self, name) != default]

    @property
    def has_generic_vectors(self) -> bool:
        """Whether the vectors are random and nonzero."""
        return not _INPUT_DESCRIBED.keys() & set(self.non_default) - {"t"}

    @property
    def is_generic(self) -> bool:
        """Whether nothing but the shape is special: random factors with condition number at most 3, random vectors."""
        return set(self.non_default) <= {*_PREFIX, "draw", "single"} and max(self.condition_G, self.condition_H) <= 3.0

    @property
    def has_zero_vectors(self) -> bool:
        """Whether a vector, or its G or H part, vanishes, which masks every other special level."""
        return bool({self.length, self.ratio, self.part} & {0.0, math.inf})

    @property
    def max_condition(self) -> float:
        """The largest condition number of a factor in any block."""
        return max(self.condition_G, self.condition_H, self.uneven_condition)

    @property
    def is_large(self) -> bool:
        """Whether the point takes so much memory that it is rebuilt whenever it is needed, and not cached."""
        return self.cost > 4000

    @property
    def is_feasible(self) -> bool:
        """Whether a test point with these features exists."""
        count, kappa = math.prod(self.blocks), self.max_condition
        return not self._is_contradictory and (
            0 < self.h <= min(self.n, self.m)
            and min(self.blocks, default=1) > 0
            and min(self.condition_G, self.condition_H) >= 1.0
            and not (self.alike and self.n != self.m)
            and not (self.identity == 1 and self.n != self.h)
            and not (self.identity == 2 and self.m != self.h)
            and self.shared in _SHARED
            and not (count < 2 and self.shared in ("G", "H", "all"))
            and not (self.h < 2 and (self.gap != 0.05 or 0.0 < self.turn < 1.0))
            and not (self.zero_rows and min(self.n, self.m) - self.zero_rows < self.h)
            and not (count < 2 and (self.uneven != 1.0 or self.uneven_condition != 1.0 or self.empty_blocks))
            and not (self.h == 1 and kappa > 3.0)
        )

    @property
    def _is_contradictory(self) -> bool:
        """Whether one feature destroys another, so that the name would not be true of the arrays."""
        has_own_sizes = self.normed or self.identity
        relates_factors = self.balance or self.alike or self.shared == "rows"
        has_mask = self.part != 1.0 or self.sparse or self.empty_rows
        has_angle = self.vertical is not None or self.cosine is not None or self.radial
        has_no_vectors = self.length == 0.0 or self.ratio in (0.0, math.inf)
        has_few_rows = min(self.n, self.m) < 2 * self.h  # an H of rows of two factors then has a large κ
        has_zeros = self.has_zero_vectors or self.sparse or self.empty_rows or self.empty_blocks
        return bool(
            (has_own_sizes and (self.size_G, self.size_H) != (1.0, 1.0))
            or (relates_factors and self.size_G != self.size_H)
            or (self.uneven != 1.0 and (has_own_sizes or relates_factors or self.shared))
            or (self.uneven_condition != 1.0 and (self.shared == "all" or self.identity))
            or (self.balance and (has_own_sizes or self.shared or self.alike))
            or (self.shared and (self.turn < 1.0 or self.identity))  # all blocks would have both factors in common
            or (self.shared == "rows" and (self.gap != 0.05 or self.normed or self.zero_rows or has_few_rows))
            or (self.alike and (self.condition_G != self.condition_H or self.identity in (1, 2)))
            or (self.alike and self.shared not in ("", "all"))
            or (self.max_condition > 3.0 and (self.turn < 1.0 or self.balance or self.normed or self.shared == "rows"))
            or (self.max_condition > 3.0 and self.h == 2 and self.gap != 0.05)  # both singular values would be equal
            or (has_mask and (self.vertical is not None or self.radial or self.cosine not in (None, 1.0, -1.0)))
            or (self.cosine is not None and (self.sparse or self.vertical is not None))
            or (self.radial and self.vertical is not None)
            or (self.gap != 0.05 and (self.turn < 1.0 or self.balance or has_own_sizes))
            or (self.balance and self.turn < 1.0)
            or (self.same and (self.ratio != 1.0 or self.cosine is not None))
            or (self.speed is not None and has_zeros)
            or (has_no_vectors and (self.same or has_angle or has_mask or self.empty_blocks))
        )

    def is_in_range(self, dtype: str, largest: float, count: float = 6.0) -> bool:
        """Return whether the numbers of the point, and products of `count` of them, stay within the range."""
        factors = count * max(abs(math.log(size)) for size in (self.size_G, self.size_H, self.uneven))
        lengths = [x for x in (self.length, self.ratio, self.length * self.ratio) if 0.0 < x < math.inf]
        vectors = max((4.0 * (abs(math.log(x)) - 12.0) for x in lengths), default=0.0)
        total = factors + max(vectors, 0.0) + 4.0 * math.log(max(abs(self.t), 1.0))
        return total <= math.log(largest) and not (self.single and dtype != "float64")

    @property
    def cost(self) -> int:
        """Approximate cost of a call: the number of entries of the larger factor, weighted up for wide heads."""
        return int(math.prod(self.blocks) * max(self.n, self.m) * self.h * (1.0 + self.h / 64.0))

    def distance(self, other: Features) -> float:
        """Return how different two points are: the number of differing fields, plus the logarithm of the ratio of
        costs.
        """
        return len(vars(self).items() ^ vars(other).items()) + abs(math.log(self.cost / other.cost))


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Features)}
_SHARED = ("", "G", "H", "all", "rows")
_PREFIX = {"blocks", "n", "m", "h", "condition_G", "condition_H"}
"""Fields that always appear at the beginning of a name."""
_INPUT_DESCRIBED = {
    **dict.fromkeys(("length", "part", "vertical", "radial", "sparse", "empty_rows", "empty_blocks"), "vectors"),
    **dict.fromkeys(("ratio", "same", "cosine"), "two vectors"), "slope": "loss", "speed": "curve", "t": "curve",
}  # fmt: skip
"""The input of a call that a field describes. All other fields describe the base point, an input of every call."""


def format_value(value: Any) -> str:
    """Return the shortest text that parses back to the same value."""
    if not isinstance(value, float):
        return str(value)
    return next((text for text in (f"{value:g}", f"{value:.12g}") if float(text) == value), repr(value))


def affects(name: str, operation: Operation) -> bool:
    """Return whether a feature describes an input of an operation.

    Examples
    --------
    >>> from refgeo.conformance.protocol.operations import OPERATIONS
    >>> [affects(name, OPERATIONS["christoffel"]) for name in ("h", "cosine", "t")]
    [True, True, False]
    """
    return {
        "point": True,
        "vectors": operation.name != "riemannian_hessian",
        "two vectors": operation.sources == ("a", "b"),
        "curve": bool(operation.extra),
        "loss": operation.name == "riemannian_hessian",
    }[_INPUT_DESCRIBED.get(name, "point")]


def repair(features: Features) -> Features:
    """Change the fields that contradict a special level: rows, blocks and condition numbers give way to it."""
    n, m, h, blocks = features.n, features.m, features.h, features.blocks
    n, m = h if features.identity == 1 else n, h if features.identity == 2 else m
    m = n if features.alike else m
    n, m = (max(rows, 2 * h if features.shared == "rows" else h + features.zero_rows) for rows in (n, m))
    is_uneven = (features.uneven, features.uneven_condition) != (1.0, 1.0)
    needs_batch = is_uneven or features.empty_blocks or features.shared in ("G", "H", "all")
    blocks = (3,) if needs_batch and math.prod(blocks) < 2 else blocks
    overrides: Overrides = {}
    if h == 1 or features.identity:
        overrides = {"condition_G": 3.0, "condition_H": 3.0}
    if features.speed is not None:  # long geodesics can be enclosed at well-conditioned points only
        names = ("size_G", "size_H", "uneven", "condition_G", "condition_H", *(["t"] if features.radial == 0.0 else []))
        overrides = {name: _DEFAULTS[name] for name in names}
    return with_fields(features, **({"n": n, "m": m, "blocks": blocks} | overrides))
