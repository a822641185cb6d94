"""What this machine offers to the planner and the sweep, and how to get what it lacks."""
