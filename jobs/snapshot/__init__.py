"""PyTorch memory snapshots, read without torch and without running anything they hold."""
