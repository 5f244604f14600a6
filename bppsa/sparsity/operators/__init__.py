"""Transposed Jacobians by their structure: a class each, with its products."""
