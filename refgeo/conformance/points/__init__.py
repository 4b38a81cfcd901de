"""Make test points: `features`, `covering_design` with the special levels, `sampling`, `circumstances`, `sources`."""
