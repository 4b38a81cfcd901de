"""Scripts a person runs and reads: real backends, benchmarks, the paper's figures."""
