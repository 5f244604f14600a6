"""What concerns the whole process: Python's collector, and children that it forks."""
