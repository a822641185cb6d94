"""Configuration as data: a folder a group, a YAML file a choice, keys the fields of a dataclass."""
