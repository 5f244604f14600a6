"""The losses of micro-batches: how they make up the loss of the batch."""
