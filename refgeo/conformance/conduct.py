"""Conduct: how every function must behave, whatever it computes. Kept apart from correctness: a row a rule.

Most of it is seen on every call (`Answer.conduct`); the rest in circumstances of its own.
"""

from __future__ import annotations

RULES = {
    "inputs_unchanged": "the function must not write to the arrays that it gets",
    "silent": "the function must not print anything or give warnings",
    "dtype_kept": "the result must have the dtype of the input",
    "owns_its_results": "results must not share memory with inputs or with each other",
    "keeps_its_results": "later calls must not change the results of earlier ones",
    "leaves_the_process_alone": "the function must not change random generators, NumPy's settings, the default dtype "
    "and device of PyTorch and JAX, warning filters, the working directory, standard streams or environment variables",
    "frees_its_memory": "repeated calls must not use more and more memory",
    "takes_any_memory_layout": "arrays in any memory layout must be taken",
    "refuses_wrong_shapes": "a vector of the wrong shape must raise an error",
    "takes_an_empty_batch": "an empty batch must give empty results",
    "nan_stays_in_its_block": "NaN in one block must not change the results of the others",
    "thread_safe": "the function must give right results in any thread, and beside calls in other threads",
}
ON_EVERY_CALL = tuple(RULES)[:6]
OF_WHOLE = ("inputs_unchanged", "silent", "leaves_the_process_alone")
"""Those that are watched in whole searches and trajectories."""
HARMFUL = ("inputs_unchanged", "keeps_its_results", "thread_safe")
"""Who breaks these makes his caller's numbers wrong: a report with such a row does not pass."""


def short(text: str) -> str:
    """The first line of a text, or its beginning.

    Examples
    --------
    >>> len(short("no" * 100))
    90
    """
    text = text.split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."
