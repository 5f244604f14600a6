"""TorchDynamo captures the forward of a pruned model: with which patches, and what it overlooks is looked at here."""
