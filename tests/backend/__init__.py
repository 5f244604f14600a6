"""torch.compile(model, backend="bppsa")."""
