"""From a recurrence to kernels that run, and what is predicted of them on this machine."""
