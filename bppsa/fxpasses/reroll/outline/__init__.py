"""A function whose loops are functions of their own, so that Python runs what is around them.

Belongs here: its source (`source`), what a loop reads, binds and changes (`loops`), and the functions that are made of
it (`split`).

Does not belong here: how such a loop is called, and what it is given (`bppsa.frontend.loops`).
"""
