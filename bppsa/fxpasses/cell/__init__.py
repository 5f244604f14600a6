"""Recorded cells: what depends on the carry, and the structure of a step's transposed Jacobian."""
