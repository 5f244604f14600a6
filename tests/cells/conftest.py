"""Within this folder kernels are interpreted, as in tests/scan: a cell has to fuse, and to give the right numbers."""

from tests.scan.conftest import kernels

__all__ = ["kernels"]
