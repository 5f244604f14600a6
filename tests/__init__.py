"""Tests, in the folders of the code they test; shared factories live in `tests.zoo`."""
