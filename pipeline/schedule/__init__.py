"""Studies on a schedule: entries, leases, tables that are certified, baselines."""
