"""What is measured: models, sizes and steps, each of a table of results."""
