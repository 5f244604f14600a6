"""The jobs of a schedule: what they are, what they wait for, and their numbers."""
