"""Find why and where a result is wrong: `causes`, failure `regions`, `formulas`, their `fitting` and `reading`."""
