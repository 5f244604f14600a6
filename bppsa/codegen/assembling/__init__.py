"""From the stores of a step to kernels: sorted into groups, around a recurrence's buffers, and programs of them."""
