"""Which layers are pruned, by which masks, and what a pruned module remembers of its calls."""
