"""Tests of the passes that find loops over time in a log."""
