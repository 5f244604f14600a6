"""A batch cut into micro-batches, and what may not be cut so."""
