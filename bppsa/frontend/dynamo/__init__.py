"""`torch.compile(model, backend="bppsa")`: our calls as ops of graphs that TorchDynamo traces."""
