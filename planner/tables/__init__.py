"""Coefficient tables, one dated TOML file each; see `planner.coefficients`."""
