"""The flat log of one call: its ops at real shapes, the memory they share, their lines, and what no op shows."""
