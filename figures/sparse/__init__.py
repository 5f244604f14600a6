"""The sparse half of the BPPSA paper: transposed Jacobians of convolutional networks (sections 3.3 to 3.5 and 5.3)."""
