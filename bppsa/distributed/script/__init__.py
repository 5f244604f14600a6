"""What a training script gives to a step and gets from it: batches, losses, loss scaling, checkpoints."""
