"""The loss that a graph gives: what the losses of micro-batches count of it, and its terms where these count unlike."""
