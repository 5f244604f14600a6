"""From a cell's graph to kernels of the language: rows of expressions, groups of stores, programs of kernels."""
