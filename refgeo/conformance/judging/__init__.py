"""From answers to evidence, and from evidence to rows with verdicts."""
