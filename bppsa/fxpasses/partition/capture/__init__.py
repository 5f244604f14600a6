"""torch.export captures the forward; what it would lose or bake in is refused, or looked at in each call."""
