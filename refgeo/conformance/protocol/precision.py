"""The floating-point types in which a backend is judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

N_PERTURBATIONS = 3
"""The number of ways in which inputs are changed by a rounding; chosen."""
INTEGRATOR_FACTOR = 100.0
"""How many times as large the unit of an error is for exact geodesics, most of which are integrated, and for some laws
of retractions: no integrator attains roundoff. Chosen."""


@dataclass(frozen=True)
class Precision:
    """A floating-point type: its unit roundoff, its largest number, and the NumPy type that carries its numbers."""

    name: str
    roundoff: float
    largest: float
    carrier: str

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that results may have; bfloat16, which NumPy does not have, is widened by the backend's
        ``to_numpy``.

        Examples
        --------
        >>> PRECISIONS["bfloat16"].dtypes
        ('bfloat16', 'float32', 'float64')
        """
        return (self.name, self.carrier, *(["float64"] if self.name == "bfloat16" else []))

    def perturb(self, array: Array, rng: np.random.Generator) -> Array:
        """Change every number at random by one unit in the last place, upwards or downwards; zeros stay.

        Examples
        --------
        >>> changed = PRECISIONS["float64"].perturb(np.ones(9), np.random.default_rng(0))
        >>> np.unique((changed - 1.0) / 2.0**-52).tolist()
        [-1.0, 1.0]
        """
        return np.asarray(array * (1.0 + 2.0 * self.roundoff * rng.choice((-1.0, 1.0), np.shape(array))))

    def round(self, array: Array) -> Array:
        """Round to the nearest numbers of this type, as float64; larger numbers become the largest one.

        Examples
        --------
        >>> float(PRECISIONS["bfloat16"].round(np.array(1.01)))
        1.0078125
        """
        array = np.clip(array, -self.largest, self.largest)
        if self.name != "bfloat16":
            return array.astype(self.carrier).astype(np.float64)
        bits = array.astype(np.float32).view(np.uint32)  # the upper half of a float32, to nearest even
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float64", 2.0**-53, float(np.finfo(np.float64).max), "float64"),
        Precision("float32", 2.0**-24, float(np.finfo(np.float32).max), "float32"),
        Precision("float16", 2.0**-11, 65504.0, "float16"),
        Precision("bfloat16", 2.0**-8, 3.38e38, "float32"),
    )
}
"""The floating-point types by name. NumPy has no bfloat16, so its numbers come in float32 arrays, which ``asarray`` may
convert without loss.
"""


def round_to_dtype(pair: Pair, dtype: str) -> Pair:
    """Round both factors of a pair to a dtype, and return them in float64.

    Examples
    --------
    >>> float(round_to_dtype(Pair([[0.1]], [[1.0]]), "float32").G.item() - 0.1) != 0.0
    True
    """
    return Pair(*(PRECISIONS[dtype].round(factor) for factor in pair))
