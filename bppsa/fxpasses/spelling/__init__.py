"""Ops that wait for the carry and have no kernel of their own, spelled in ops that have one."""
