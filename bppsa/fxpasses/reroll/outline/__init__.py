"""A function whose loops are functions of their own, so that Python runs what is around them.

Belongs here: its source (`source`), what a loop reads, binds and changes (`loops`), the functions that are made of it
(`split`), its decorators (`wrappers`), and what it may call (`reach`).

Does not belong here: how such a loop is called, and what it is given (`bppsa.frontend.loops`).
"""
