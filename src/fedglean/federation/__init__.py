"""A real federation on Flower: the same methods, the hub and each branch a process or a machine of
its own.

`flwr` is an extra: what the command line and a branch's computation import does without it.
"""
