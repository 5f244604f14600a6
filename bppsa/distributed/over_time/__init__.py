"""Training whose time axis is cut: batches, losses and parts by chunk of time."""
