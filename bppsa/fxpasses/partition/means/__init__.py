"""How values of the whole batch are made of those of its micro-batches, read from the graph of a loss."""
