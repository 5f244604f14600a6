"""Where a graph is cut, and the stages that this makes."""
