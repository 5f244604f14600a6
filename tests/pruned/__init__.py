"""Pruned networks through bppsa.compile."""
