"""Every query on the ledger's tables; rows in, values out."""
