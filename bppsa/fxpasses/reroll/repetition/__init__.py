"""Where a log repeats itself, and how the operands of its steps relate."""
