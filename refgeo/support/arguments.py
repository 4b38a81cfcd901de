"""Arguments: every check of one, once. An error names the argument, what was expected and what came."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from refgeo.support.errors import NotFiniteError

Array = npt.NDArray[np.floating[Any]]
"""Real arrays; float64 wherever refgeo makes them."""
Order = Literal[1, 2, "exact"]
ENDS = {"inv": 0.0, "mix": 1.0}
"""The paper's two metrics, as the ends of the family S⁻¹ #ₛ T."""
_FEW = 20
"""Up to this many choices are listed."""


def real_array(name: str, value: npt.ArrayLike) -> Array:
    """Return a float64 copy of `value`; the array itself if it is one that nobody can write to.

    Examples
    --------
    >>> real_array("x", [1, 2])
    array([1., 2.])
    """
    refuse_masked(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: expected a rectangular array of real numbers, got uneven nested lists") from error
    except (TypeError, RuntimeError) as error:  # a tensor of PyTorch that needs a gradient, or is bfloat16
        raise TypeError(f"{name}: expected what NumPy can read, got {type(value).__name__}: {error}") from error
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected real numbers (float or integer), got dtype {array.dtype}; convert it first")
    if not (array.dtype == np.float64 and array.flags.owndata and not array.flags.writeable):
        array = np.array(array, dtype=np.float64)
    # The sum is one cheap pass; only a suspicious sum (NaN, or overflow of finite entries) pays for the full test.
    with np.errstate(all="ignore"):
        suspicious = not np.isfinite(array.sum())
    if suspicious and not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise NotFiniteError(f"{name}: expected finite numbers, got {array[where]} at index {where}")
    return array


def one_array(name: str, value: npt.ArrayLike) -> Array:
    """Return a float64 copy as `real_array` does, but refuse a list of arrays, which is more than one parameter.

    Examples
    --------
    >>> one_array("params", [np.ones(2), np.ones(2)])
    Traceback (most recent call last):
    ...
    TypeError: params: expected one array, got a list of arrays; name several by a dict, and make a pair of two ...
    """
    if isinstance(value, (list, tuple)) and any(np.ndim(part) for part in value if hasattr(part, "shape")):
        raise TypeError(
            f"{name}: expected one array, got a {type(value).__name__} of arrays; name several by a dict, and make a "
            "pair of two factors with refgeo.Pair(G, H)"
        )
    return real_array(name, value)


def detach(value: Any) -> Any:
    """Return a tensor of PyTorch without its graph and from its device, where NumPy can read it; anything else as it
    is.

    Examples
    --------
    >>> detach(2.0)
    2.0
    """
    for step in ("detach", "cpu"):
        method = getattr(value, step, None)
        value = method() if callable(method) else value
    return value


def refuse_masked(name: str, value: Any) -> None:
    """Raise an error for an array of which some entries are masked: whatever is behind them is no number.

    Examples
    --------
    >>> refuse_masked("loss", np.ma.masked)
    Traceback (most recent call last):
    ...
    TypeError: loss: expected numbers, got a masked array; fill or drop what is masked first
    """
    if np.ma.is_masked(value):
        raise TypeError(f"{name}: expected numbers, got a masked array; fill or drop what is masked first")


def number(
    name: str, value: Any, meaning: str = "", *, least: float = -np.inf, above: float = -np.inf, most: float = np.inf
) -> float:
    """Return one finite number, `least` or more, more than `above`, `most` or less; also one in an array without
    dimensions.

    Examples
    --------
    >>> number("t", np.array(2))
    2.0
    >>> number("relaxation", -1, "ε of App. H.2", least=0)
    Traceback (most recent call last):
    ...
    ValueError: relaxation: expected a finite number >= 0 (ε of App. H.2), got -1
    """
    array = np.asarray(value)
    if (
        array.shape == ()
        and array.dtype.kind in "iuf"
        and np.isfinite(array)
        and above < array
        and least <= array <= most
    ):
        return float(array)
    bound = f" >= {least:g}" if least > -np.inf else f" > {above:g}" if above > -np.inf else ""
    bound += f" and <= {most:g}" if most < np.inf else ""
    came = repr(value) if array.shape == () else f"an array of shape {array.shape}"
    raise ValueError(f"{name}: expected a finite number{bound}{f' ({meaning})' if meaning else ''}, got {came}")


def radius_of(value: Any) -> float:
    """Return ρ as a float.

    Examples
    --------
    >>> radius_of(1)
    1.0
    """
    return number("rho", value, "the radius of the ball", above=0.0)


def radii_listed(value: Any) -> list[float]:
    """Return ρ, or several, as a list of floats.

    Examples
    --------
    >>> radii_listed(0.1), radii_listed((0.1, 0.2))
    ([0.1], [0.1, 0.2])
    """
    if np.ndim(value) == 0:
        return [radius_of(value)]
    radii = [radius_of(radius) for radius in np.ravel(value).tolist()] if np.ndim(value) == 1 else []
    if not radii:
        raise ValueError(f"rho: expected a number or a list of numbers, got shape {np.shape(value)}")
    return radii


def radii_of(value: npt.ArrayLike, batch: tuple[int, ...]) -> Array:
    """Return radii of a shape with which the leading dimensions `batch` broadcast.

    Examples
    --------
    >>> radii_of([[0.1], [0.2]], (3,)).shape
    (2, 3)
    """
    array = real_array("rho", value)
    if not np.all(array > 0.0):
        raise ValueError(f"rho: expected numbers > 0, the radii of balls, got {value!r}")
    try:
        return np.array(np.broadcast_to(array, np.broadcast_shapes(array.shape, batch)))
    except ValueError:
        raise ValueError(
            f"rho: expected a shape that broadcasts with the shape {batch} of the networks, got {array.shape}"
        ) from None


def integer(name: str, value: Any, least: int = 1) -> int:
    """Return an integer, `least` or more.

    Examples
    --------
    >>> integer("n_iter", 20)
    20
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: expected an integer >= {least}, got {value!r}")
    return int(value)


def seed_of(rng: np.random.Generator | int | None) -> int:
    """Return a seed: the integer itself, or one drawn from the generator.

    Examples
    --------
    >>> seed_of(7)
    7
    """
    if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0:
        return int(rng)
    if rng is None or isinstance(rng, np.random.Generator):
        return int(np.random.default_rng(rng).integers(2**32))
    raise TypeError(f"rng: expected a seed >= 0, a numpy Generator or None, got {rng!r}")


def order_of(value: object) -> Order:
    """Return the order of a geodesic: 1, 2 or "exact".

    Examples
    --------
    >>> order_of("exact")
    'exact'
    """
    if isinstance(value, str) and value == "exact":
        return "exact"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value in (1, 2):
        return 1 if value == 1 else 2
    raise ValueError(f'order: expected 1, 2 or "exact", got {value!r}')


def as_list(names: str | Iterable[str]) -> list[str]:
    """Return names as a list; a single name may be given alone.

    Examples
    --------
    >>> as_list("inv")
    ['inv']
    """
    return [names] if isinstance(names, str) else list(names)


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return the value if it is one of the known ones, else raise an error.

    Examples
    --------
    >>> one_of("metric", "mix", ("inv", "mix"))
    'mix'
    """
    known = list(dict.fromkeys(known))
    if value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5) + [
        name for name in known if str(value) in name
    ]
    if len(known) <= _FEW:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    if near:
        raise ValueError(f"{name}: {value!r} is unknown; did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?")
    raise ValueError(f"{name}: {value!r} is none of {len(known)} names such as {', '.join(known[:3])}")
