"""Turn answers into `evidence`, and evidence into rows (`verdict`); `checks` lists all checks."""
