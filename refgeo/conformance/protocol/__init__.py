"""What a backend is, as data: its functions (`operations`), calls and answers, rules of conduct, precisions."""
