"""What training would take on workers that are not there yet: a model traced without memory, and ranked schedules."""
