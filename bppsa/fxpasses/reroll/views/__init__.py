"""Views and cats of a log, put together or told apart, so that one value for each step is one tensor."""
