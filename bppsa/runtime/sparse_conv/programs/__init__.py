"""Images in a region's programs, and the steps that write these."""
