"""A call of the model that is cut: its arguments, its result, and the user's lines that errors name."""
