"""Conduct: how every function must behave, whatever it computes. Kept apart from correctness: a row a rule.

Most of it is seen on every call (`Answer.conduct`); the rest in circumstances of its own.
"""

from __future__ import annotations

RULES = {
    "inputs_unchanged": "the function must not write to the arrays that it gets",
    "dtype_kept": "the result must have the dtype of the input",
    "owns_its_results": "results must not share memory with inputs or with each other",
    "keeps_its_results": "later calls must not change the results of earlier ones",
    "takes_any_memory_layout": "arrays in any memory layout must be taken",
    "thread_safe": "the function must give right results in any thread, and beside calls in other threads",
}
ON_EVERY_CALL = tuple(RULES)[:4]
OF_WHOLE = ("inputs_unchanged",)
"""That is watched in whole searches and trajectories."""
HARMFUL = ("inputs_unchanged", "keeps_its_results", "thread_safe")
"""Who breaks these makes his caller's numbers wrong whatever he does: a report with such a row does not pass."""


def short(text: str) -> str:
    """The first line of a text, or its beginning.

    Examples
    --------
    >>> len(short("no" * 100))
    90
    """
    text = text.split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."
