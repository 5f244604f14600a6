"""Recurrences that run: sweeps over all steps, scans over chunks of them, Newton's iteration, and the ATen loop that
all of these are tested against.
"""
