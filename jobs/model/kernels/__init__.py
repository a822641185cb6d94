"""The operations that a GPU runs as one fused kernel, as single operators with CPU numerics.

Each operator is one `torch.library.custom_op`: a dispatch mode sees its outputs and what it saves,
and none of the scratch inside. Its docstring says which GPU kernel it stands for.
"""
