"""Text that comes from elsewhere, made fit for a terminal."""


def plain(text: str, keep: str = "") -> str:
    """Return ``text`` with what would steer a terminal, or cannot be printed, written out.

    Parameters
    ----------
    keep
        Characters that stay all the same, such as the newline.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
