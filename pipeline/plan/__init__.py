"""What `peakcast plan` reads and shows: recompute, routing, tables and pages."""
