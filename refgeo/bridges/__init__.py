"""To other programs: autograd, pytest, Hypothesis, Pymanopt."""
