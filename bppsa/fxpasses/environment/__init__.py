"""What a function depends on besides its arguments, and whether it is still the same."""
