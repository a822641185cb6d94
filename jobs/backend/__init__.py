"""What a machine must provide for ranks to run on it: CPUs over gloo."""
