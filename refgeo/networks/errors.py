"""Errors of the readers."""


class LayoutError(ValueError):
    """A checkpoint does not fit the layout it is read with."""
