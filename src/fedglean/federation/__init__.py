"""A real federation: the same methods, the hub and each branch a process or a machine of its own.

Nothing here knows Flower, which carries the letters, but the room `flower/`; it is an extra, and
what the command line and a branch's computation import does without it.
"""
