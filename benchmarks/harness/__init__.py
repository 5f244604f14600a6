"""What times, names the machine, and keeps and prints results."""
