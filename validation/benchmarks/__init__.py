"""Timings, as ratios against the plain alternative in the same run."""
