"""The fleet of one cluster as columns: what its nodes have, what is free, and a ledger of changes.

Owns facts in row form (`facts`) and in column form (`columns`); never decides where work goes.
"""
