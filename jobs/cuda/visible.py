"""CUDA devices that a cell's ranks may see. Standard library and planner only."""

from planner.errors import ConfigError


def visible_devices(given: str | None, ranks: int) -> tuple[int, ...]:
    """Return the devices for ``ranks`` ranks of one host, one each, by number.

    Parameters
    ----------
    given
        ``CUDA_VISIBLE_DEVICES`` as the driver of a sweep finds it; ``None``: not set.

    Raises
    ------
    ConfigError
        When it names devices otherwise than by number, or too few of them.
    """
    if given is None:
        return tuple(range(ranks))
    numbers = [part.strip() for part in given.split(",") if part.strip()]
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES = {given} names devices otherwise than by number; "
            "give numbers, such as 0,1"
        )
    if len(numbers) < ranks:
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES = {given!r} shows {len(numbers)} devices to {ranks} ranks; "
            "show one for each rank, or unset it"
        )
    return tuple(int(number) for number in numbers[:ranks])
