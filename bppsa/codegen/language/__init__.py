"""The kernel language: its data, what a kernel must satisfy, the interpreter that defines it, and counts."""
