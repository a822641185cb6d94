"""What runs on ranks, and what starts it."""
