"""What a backend is: its functions, calls and answers, rules of conduct, and floating-point types; data only."""
