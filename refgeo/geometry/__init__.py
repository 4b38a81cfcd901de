"""The geometries: points, metrics, geodesics, distances."""
