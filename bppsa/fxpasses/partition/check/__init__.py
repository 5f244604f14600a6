"""Whether stages give what their model gives, and which arguments have the batch's rows."""
