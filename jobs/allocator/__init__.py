"""PyTorch's caching allocator, simulated: its rules, its blocks, and a timeline replayed."""
