"""Figures of the papers on schedules. All are simulated: the same on every machine, and in seconds."""
