"""Find why and where a result is wrong: candidate `causes`, failure `regions`, `formulas` and their `fitting`."""
