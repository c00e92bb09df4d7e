"""Answers long questions to the decision core in a process of their own, short ones at once."""
