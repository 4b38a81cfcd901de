"""Run somebody's code, in a process of its own."""
