"""Messages between the ranks of a process group, and between threads."""
