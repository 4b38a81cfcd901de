"""Judge whole runs: searches for sharpness, and trajectories of update rules."""
