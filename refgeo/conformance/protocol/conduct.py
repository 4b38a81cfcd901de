"""Rules of conduct: side effects that no function of a backend may have, whatever it computes.

They are kept apart from correctness: each rule has a row of its own. Most breaches are detected on every call
(`Answer.breaches`), the others in circumstances that test a rule.
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
"""The rules by name, each with what must hold."""
PER_CALL_RULES = tuple(RULES)[:4]
"""The rules of which every call can show a breach."""
WHOLE_RUN_RULES = ("inputs_unchanged",)
"""The rules that are checked in whole searches and trajectories."""
HARMFUL = ("inputs_unchanged", "keeps_its_results", "thread_safe")
"""The rules of which a breach makes a caller's numbers wrong, whatever the caller does: it fails the report."""


def first_line(text: str) -> str:
    """Return the first line of a text, cut off after 90 characters.

    Examples
    --------
    >>> len(first_line("no" * 100))
    90
    """
    text = text.split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."
