"""Linear attention under context parallelism: tokens of all heads for all tokens of some heads."""

from megatron.core.tensor_parallel.mappings import all_to_all
from torch import Tensor
from torch.distributed import ProcessGroup

from jobs.model.kernels.head_exchange import merge_heads, order_rows, split_heads, zigzag_rows


def to_heads(x: Tensor, sections: list[int], lengths: list[int], group: ProcessGroup) -> Tensor:
    """Return whole requests, one after another, of this rank's heads.

    Parameters
    ----------
    x
        (T, width): this rank's tokens in zigzag order, all heads.
    sections
        Widths of queries, keys and so on, which lie side by side in x; each divides over the ranks.
    lengths
        Tokens of each request over all ranks.

    Returns
    -------
    Tensor
        (ranks·T, width/ranks). One buffer of x's size is sent, one received and one put in order;
        nothing is kept for backward.
    """
    degree = group.size()
    sent = split_heads(x, sections, degree)
    return order_rows(all_to_all(group, sent), lengths, degree)


def to_tokens(x: Tensor, sections: list[int], lengths: list[int], group: ProcessGroup) -> Tensor:
    """Return this rank's tokens in zigzag order, (T, width), of all heads; inverse of `to_heads`.

    ``sections`` are the widths over all ranks.
    """
    degree = group.size()
    sent = zigzag_rows(x, lengths, degree)
    return merge_heads(all_to_all(group, sent), sections, degree)
