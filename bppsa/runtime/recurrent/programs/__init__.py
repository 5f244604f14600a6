"""Short calls of a recurrence, whose native calls are written once and made together."""
