"""Judge whole runs: `searches` for sharpness, and the `invariance` of trajectories of update rules."""
