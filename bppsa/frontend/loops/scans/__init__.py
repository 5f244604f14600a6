"""A loop as one scan: its fused step, shared by all lengths, and the check that it computes what the loop did."""
