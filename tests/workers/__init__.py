"""Tests of models that train on several workers."""
