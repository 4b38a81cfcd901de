"""The paper's formulas as refgeo transcribes them, as a backend file to copy from.

refgeo check validation/backends/literal.py
"""

from refgeo.paper import (
    christoffel,
    geodesic,
    horizontal_projection,
    inner_product,
    riemannian_gradient,
    riemannian_hessian,
)

__all__ = [
    "christoffel",
    "geodesic",
    "horizontal_projection",
    "inner_product",
    "riemannian_gradient",
    "riemannian_hessian",
]
