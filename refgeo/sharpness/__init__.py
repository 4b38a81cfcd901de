"""What a loss looks like modulo its symmetries: sharpness in a geodesic ball, spectra, and which symmetries it has."""
