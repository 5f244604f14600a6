"""Models recorded for their transposed Jacobians, and how the values of these are computed."""
