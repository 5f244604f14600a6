"""Loops over time, found in what one call did: a log of its ops, a period, what repeats, and one scan in its place.

Belongs here: how a call is logged (`log`, `memory`, `unseen`), how a period is found (`period`), how the operands of
its repetitions relate (`relate`, `unroll`), and the program that has a scan in the loop's place (`columns`, `body`,
`rewrite`, `program`).

Does not belong here: which modules are looked at, when a plan is believed, and what runs it (`bppsa.frontend.loops`).
"""
