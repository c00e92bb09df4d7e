"""What makes a cluster: one specification, the files for a cloud, the scripts for machines."""
