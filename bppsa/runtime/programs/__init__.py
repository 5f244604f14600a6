"""Programs of native calls, and where what they work on lies in memory."""
