"""The meters: what a call really holds, and which planner term it belongs to."""
