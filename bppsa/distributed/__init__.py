"""`bppsa.compile(model, schedule=...)`: a model that trains on several workers as a schedule says."""
