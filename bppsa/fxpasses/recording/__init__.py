"""What a function does to tensors, recorded as an fx graph of ATen ops."""
