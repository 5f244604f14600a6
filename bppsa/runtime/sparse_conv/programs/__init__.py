"""Programs of native calls on blocked images, and where those lie in memory."""
