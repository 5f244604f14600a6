"""In which order and in which blocks a printer runs a group: levels, tiles, hazards, and where threads meet."""
