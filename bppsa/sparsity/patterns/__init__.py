"""Which entries of a transposed Jacobian may be non-zero: static CSR patterns, their products and sums."""
