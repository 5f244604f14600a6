"""Recorded networks: cut into a chain, and walked backwards with the J^T rules."""
