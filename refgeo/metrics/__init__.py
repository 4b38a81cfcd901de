"""Names of modules that stand in `refgeo.geometry`: ``refgeo.metrics.pair`` is `refgeo.geometry.pair_metrics`."""
