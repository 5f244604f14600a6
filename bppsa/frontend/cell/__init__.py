"""`bppsa.scan`: a recurrence over a cell of the user's, checked, planned and run."""
