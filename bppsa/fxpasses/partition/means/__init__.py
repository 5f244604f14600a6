"""By what the losses of micro-batches are weighted, so that they make up the batch's: read from a loss's graph."""
