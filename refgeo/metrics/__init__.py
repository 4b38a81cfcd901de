"""The geometries, one a file."""
