"""What the ops of a graph do: their cost, what they draw and overwrite, and under which modes they run."""
