"""What a command line says of the router."""

import json
from pathlib import Path

from planner.errors import ConfigError
from planner.routing import Routing

WAY_OUT = "give balanced, worst, or a JSON file that holds shares, or samples of several calls"


def routed(text: str, allowance: float | None) -> Routing:
    """Return the routing of a word or of a file.

    Parameters
    ----------
    text
        ``balanced``; ``worst``; or the path of a JSON file: ``{"shares": [[share of each expert, …]
        of each layer, …]}`` as a census or checkpoint has it (``routing.json``), or ``{"samples":
        [shares of a call, …], "quantile": 0.99}``.
    allowance
        Factor on routed rows for the bound, in place of the table's.

    Raises
    ------
    ConfigError
        For a word that is none, and a file that cannot be read or holds neither.
    """
    if text == "balanced":
        return Routing.balanced(allowance)
    if text == "worst":
        if allowance is not None:
            raise ConfigError("--routing worst is the bound already; leave --allowance out")
        return Routing.worst_case()
    if not text.endswith(".json"):
        raise ConfigError(f"--routing {text} is not known; {WAY_OUT}")
    try:
        held = json.loads(Path(text).read_text(encoding="utf-8"))
        if "samples" in held:
            if allowance is not None:
                raise ConfigError(
                    f"{text} has samples, whose quantile is the bound; no --allowance"
                )
            return Routing.sampled(held["samples"], held.get("quantile", 0.99))
        return Routing.measured(held["shares"], allowance)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {text}: {error}; {WAY_OUT}") from error
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{text} holds neither shares nor samples; {WAY_OUT}") from error
