"""Tests of bppsa.scan and bppsa.cells, and the cells that tests of other rooms share."""
