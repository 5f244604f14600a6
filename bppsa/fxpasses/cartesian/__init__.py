"""Complex values of a recorded cell, as their real and imaginary parts: sweeps compute with real numbers."""
