"""Durations of functions that are called in turn, so that a busy machine slows all of them."""

import statistics
import time


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def durations_of(functions, rounds):
    """Durations of each, the first round left out."""
    durations = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            duration = seconds(function)
            if number > 0:
                durations[name].append(duration)
    return durations


def ratios(durations, name, unit):
    """Of each round, sorted."""
    return sorted(a / b for a, b in zip(durations[name], durations[unit], strict=True))


def ratio(durations, name, unit):
    return statistics.median(ratios(durations, name, unit))
