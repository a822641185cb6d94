"""READERS: a configuration that someone really has → `planner.model.Model`, or a named error."""
