"""Steps cut into chunks, and the affine maps that a scan over chunks puts together."""
