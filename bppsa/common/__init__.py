"""What several rooms hand on to each other, and the map of what was used last."""
