"""Tests of the passes from a model to graphs."""
