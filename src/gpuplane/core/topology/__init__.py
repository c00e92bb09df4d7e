"""How the GPUs of one node are wired, and which of them to hand out together.

Kept empty of imports so that a reader of `matrix` does not pay for numpy.
"""
