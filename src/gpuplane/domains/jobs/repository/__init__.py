"""Every query on the tables of jobs: rows in, values out."""
