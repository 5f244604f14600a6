"""Feed-forward chains that run: the backward of each stage, or a scan over their transposed Jacobians."""
