"""Recorded cells rewritten so that every value has the rows of the batch in front, wherever views put them."""
