"""Modules whose forward has a loop over time: one call is logged, its loops become scans, and later calls run those.

Belongs here: which modules are looked at (`adopt`), the class they get (`classes`), what a call needs in common with
the one that was logged (`key`), how a plan is made (`plans`, `fuse`) and believed (`verify`), what a
report tells (`told`), and one call (`call`).

Does not belong here: how a log is made and what becomes of it (`bppsa.fxpasses.reroll`).
"""
