"""What somebody gives: parameters, a loss and its gradients; checked, so that nothing broadcasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array, one_array, refuse_masked
from refgeo.support.errors import NotFiniteError

LossAndGradient = Callable[..., tuple[float, Any]]


class Parameters:
    """Somebody's parameters as named blocks; one `Pair` or one array is one block, called `ONLY`.

    Attributes
    ----------
    given
        As they came.
    blocks : mapping
    """

    def __init__(self, params: Any) -> None:
        self.given, self.single = params, not isinstance(params, Mapping)
        self.blocks: Mapping[str, Any] = {ONLY: params} if self.single else params

    def assemble(self, blocks: Mapping[str, Any]) -> Any:
        """Return parameters of the caller's type, with these blocks replaced."""
        return blocks[ONLY] if self.single else {**self.given, **blocks}

    def gradients(self, grads: Any) -> Mapping[str, Any]:
        """Return the caller's gradients by block."""
        if not self.single and not isinstance(grads, Mapping):
            raise TypeError(f"value_and_grad: expected a dict of gradients, got {type(grads).__name__}")
        return {ONLY: grads} if self.single else grads


Name = tuple[str, str]
"""Of an array: that of its block, and G or H in a pair."""


class Arrays:
    """Somebody's parameters as named arrays, a pair as two.

    Attributes
    ----------
    parameters : Parameters
    given : dict of Name to ndarray
    """

    def __init__(self, params: Any, names: Iterable[str] | None = None) -> None:
        self.parameters = Parameters(params)
        blocks = self.parameters.blocks
        chosen = {name: blocks[name] for name in (blocks if names is None else names)}
        self._blocks = {n: x if isinstance(x, Pair) else one_array("params", x) for n, x in chosen.items()}
        self.given = _split(self._blocks)

    def label(self, name: Name) -> str:
        """Return the name as messages give it.

        Examples
        --------
        >>> arrays = Arrays({"qk": Pair([[1.0]], [[2.0]]), "w": [3.0]})
        >>> [arrays.label(name) for name in arrays.given]
        ['qk.G', 'qk.H', 'w']
        """
        block, factor = name
        return block if not factor else factor if self.parameters.single else f"{block}.{factor}"

    def _together(self, arrays: Mapping[Name, Array]) -> dict[str, Any]:
        return {
            n: Pair.unchecked(arrays[n, "G"], arrays[n, "H"]) if isinstance(block, Pair) else arrays[n, ""]
            for n, block in self._blocks.items()
        }

    def join(self, arrays: Mapping[Name, Array]) -> Any:
        """Return blocks of the type of the parameters; those that are not moved are left out."""
        blocks = self._together(arrays)
        return blocks[ONLY] if self.parameters.single else blocks

    def assemble(self, arrays: Mapping[Name, Array]) -> Any:
        """Return parameters of the caller's type, with these arrays replaced."""
        return self.parameters.assemble(self._together({**self.given, **arrays}))

    def gradients(self, grads: Any) -> dict[Name, Array]:
        """Return the caller's gradients by array."""
        by_block, single = self.parameters.gradients(grads), self.parameters.single
        blocks = self._blocks.items()
        return _split({n: as_gradient("" if single else n, {"": grads} if single else by_block, x) for n, x in blocks})

    def value_and_grad(self, function: LossAndGradient) -> LossAndGradient:
        """Return the caller's function as a function of named arrays; missing arrays keep their values."""

        def of_arrays(arrays: Mapping[Name, Array]) -> tuple[float, Any]:
            loss, grads = unpack_evaluation(function(self.assemble(arrays)))
            return loss, self.gradients(grads) if math.isfinite(loss) else {}

        return of_arrays


def _split(blocks: Mapping[str, Any]) -> dict[Name, Array]:
    arrays: dict[Name, Array] = {}
    for name, block in blocks.items():
        if isinstance(block, Pair):
            arrays |= {(name, "G"): block.G, (name, "H"): block.H}
        else:
            arrays[name, ""] = block
    return arrays


class CheckedGradients(Mapping[str, Any]):
    """Somebody's gradients, each checked and converted where it is asked for, so that there is one at a time."""

    def __init__(self, grads: Mapping[str, Any], points: Mapping[str, Any]) -> None:
        self._grads, self._points = grads, points

    def __getitem__(self, name: str) -> Any:
        return as_gradient(name, self._grads, self._points[name])

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)


def as_gradient(name: str, grads: Any, point: Any) -> Any:
    """Return the gradient of one block, an array or a pair of its shapes, so that nothing broadcasts.

    Examples
    --------
    >>> as_gradient("w", {"w": [1.0, 2.0]}, np.zeros(2))
    array([1., 2.])
    """
    label = f"value_and_grad: the gradient of {name!r}" if name else "value_and_grad: the gradient"
    if name not in grads:
        raise ValueError(
            f"{label} is missing; expected one for every block that moves: those of the metric, or of names (what the "
            "loss freezes must be frozen there, too)"
        )
    if not isinstance(point, Pair):
        return _as_gradient_array(label, grads[name], point.shape)
    try:
        G, H = grads[name]
    except (TypeError, ValueError):
        raise TypeError(f"{label}: expected a Pair (or a tuple (G, H)), got {type(grads[name]).__name__}") from None
    return Pair.unchecked(
        _as_gradient_array(label + ", G", G, point.G.shape), _as_gradient_array(label + ", H", H, point.H.shape)
    )


def _as_gradient_array(label: str, value: Any, shape: tuple[int, ...]) -> Array:
    refuse_masked(label, value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor of PyTorch that has a gradient itself
        raise TypeError(
            f"{label}: expected an array that NumPy can read, got {type(value).__name__}: {error}"
        ) from error
    if array.shape != shape or array.dtype.kind not in "fiu":
        raise ValueError(f"{label}: expected real numbers of shape {shape}, got {array.dtype} of shape {array.shape}")
    if not is_finite(array):
        raise NotFiniteError(f"{label} is not finite")
    return array.astype(np.float64, copy=False).view()  # a `Pair` makes it read-only, and the caller's stays writable


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite; as a rule, one dot product tells."""
    flat = array.reshape(-1) if array.flags.c_contiguous else None
    with np.errstate(over="ignore", invalid="ignore"):
        if flat is not None and math.isfinite(np.dot(flat, flat)):
            return True
    return bool(np.isfinite(array).all())


class Calls:
    """A context in which somebody's function is called: a StopIteration of it becomes an error, because it would end
    whatever iterator the caller is in.

    Examples
    --------
    >>> with Calls("value", loss := lambda w: next(iter([]))):
    ...     loss(1.0)
    Traceback (most recent call last):
    ...
    RuntimeError: value: it raised StopIteration; has an iterator of batches come to its end?
    """

    def __init__(self, name: str, function: Any) -> None:
        if not callable(function):
            raise TypeError(f"{name}: expected a function of the parameters, got {type(function).__name__}")
        self._name = name

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise an error if the function has raised StopIteration."""
        if isinstance(error, StopIteration):
            raise RuntimeError(
                f"{self._name}: it raised StopIteration; has an iterator of batches come to its end?"
            ) from error


def unpack_evaluation(result: Any) -> tuple[float, Any]:
    """Return the loss and the gradients of an evaluation, or raise an error about what ``value_and_grad`` returned.

    Examples
    --------
    >>> unpack_evaluation((np.float32(0.5), "gradients"))
    (0.5, 'gradients')
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"value_and_grad: expected a function that returns (loss, gradients), got {type(result).__name__}; "
            "refgeo.value_and_grad(loss) makes such a function with autograd"
        )
    return as_loss("value_and_grad", result[0]), result[1]


_REPEATS = 1e-5
"""Of a loss, what two calls may differ by."""


def refuse_chance(
    loss: float, again: float, when: str = "; is dropout on, or does the function change the model"
) -> None:
    """Raise an error unless two calls with the same parameters gave the same loss.

    Examples
    --------
    >>> refuse_chance(1.0, 1.0 + 1e-6)
    """
    if abs(again - loss) > _REPEATS * max(abs(loss), abs(again)):
        raise ValueError(
            f"value_and_grad: two calls with the same parameters gave the losses {loss:.8g} and {again:.8g}{when}? "
            "(module.eval(), a fixed batch and a fixed seed help; verify=False turns the check of a search off)"
        )


def as_loss(name: str, loss: Any) -> float:
    """Return the loss as a float.

    Examples
    --------
    >>> as_loss("value", np.array([[0.5]]))
    0.5
    """
    refuse_masked(f"{name}: the loss", loss)
    expected = f"{name}: expected the loss to be one real number, got"
    if isinstance(loss, tuple):
        raise TypeError(f"{expected} a tuple; value_and_grad(params)[0] is the loss without the gradient")
    try:
        array = np.asarray(loss)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor of PyTorch that has a gradient
        raise TypeError(f"{expected} {type(loss).__name__}: {error}; return loss.item()") from error
    if array.size != 1 or array.dtype.kind not in "fiu":
        kind = f"{type(loss).__name__} {array.shape}; return one number, such as their mean" if array.size != 1 else (
            f"{type(loss).__name__}" if array.dtype.kind == "O" else f"the dtype {array.dtype}"
        )  # fmt: skip
        raise TypeError(f"{expected} {kind}")
    return float(array.item())


def on_batch(function: Callable[..., Any], batch: Any) -> Callable[[Any], Any]:
    """Return the function of parameters alone.

    Examples
    --------
    >>> on_batch(lambda params, batch: params + batch, 1)(2)
    3
    """
    return lambda params: function(params, batch)
