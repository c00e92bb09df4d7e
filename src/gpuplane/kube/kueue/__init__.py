"""Kueue's objects: what they are called, and how our quota documents read as them and back.

Owns the translation in both directions for every served version of Kueue's API. Pure: it never
talks to a cluster, that is the loop that writes and reads these objects.
"""
