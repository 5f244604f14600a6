"""Which strategy runs a chain, and why: levels of combine steps, cost, choice.

Belongs here: pure functions from shapes, structures and a record of the machine to a plan and a `Decision` with the
numbers that led to it. The machine is measured elsewhere and passed in.

Does not belong here: tensors with values, graphs, generated code, anything that measures time.
"""
