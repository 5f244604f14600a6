"""One training step or call on several workers: batches, losses, workers of threads and ranks, sums of gradients."""
