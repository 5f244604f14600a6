"""A recorded cell, rewritten into ops on rows that a kernel can run."""
