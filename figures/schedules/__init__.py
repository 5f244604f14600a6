"""Figures of the papers on schedules. All but `waves` are simulated: the same on every machine, and in seconds."""
