"""Programs: what each worker does in its order, and the messages that this takes."""
