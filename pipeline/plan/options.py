"""The options of ``peakcast plan``: a type for each, in the order and the panels of its help."""

from pathlib import Path
from typing import Annotated, Any

import typer

TOPOLOGY, STEP, ELSE = "Topology", "Step", "What it fits on, and what is written"


def _degree(what: str) -> Any:
    return typer.Option(min=1, metavar="N", rich_help_panel=TOPOLOGY, help=what)


Model = Annotated[
    str, typer.Option(metavar="NAME|PATH", help="name in conf/model, or path of a config.json")
]
Layers = Annotated[int | None, typer.Option(metavar="N", help="layers instead of the model's own")]
Tokens = Annotated[int | None, typer.Option(metavar="N", help="tokens of a call over all ranks")]
RankTokens = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="tokens of each (dp, cp) rank, cp fastest"),
]
Requests = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON: lengths, or requests with shared prefixes"),
]
ForwardOnly = Annotated[
    bool,
    typer.Option(
        "--forward-only",
        help="no request needs gradients: log-probabilities alone (without full recompute priced "
        "as if they did, which is never too low)",
    ),
]
Tp = Annotated[int, _degree("tensor parallel")]
Cp = Annotated[int, _degree("context parallel")]
Ep = Annotated[int, _degree("expert parallel")]
Etp = Annotated[int, _degree("tensor parallel inside an expert")]
Pp = Annotated[int, _degree("pipeline stages")]
Dp = Annotated[int, _degree("data parallel replicas")]
Recompute = Annotated[
    str,
    typer.Option(metavar="HOW", rich_help_panel=STEP, help="full, block, selective or none"),
]
RecomputeModules = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        rich_help_panel=STEP,
        help="with selective: Megatron's names, such as core_attn,mlp",
    ),
]
RecomputeLayers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=STEP,
        help="with block: checkpointed layers of a stage; with full: layers of a checkpoint",
    ),
]
LoraRank = Annotated[
    int,
    typer.Option(metavar="N", rich_help_panel=STEP, help="rank of the adapters; 0: all is trained"),
]
Adapters = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        rich_help_panel=STEP,
        help="where they lie: experts, or all; by default as the table has them",
    ),
]
Compiled = Annotated[
    bool,
    typer.Option("--compiled", rich_help_panel=STEP, help="each layer is compiled"),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="own|te",
        rich_help_panel=STEP,
        help="te: Transformer Engine's experts and attention",
    ),
]
Routing = Annotated[
    str,
    typer.Option(
        metavar="HOW|FILE",
        rich_help_panel=STEP,
        help="balanced, worst, or a JSON file of measured shares",
    ),
]
Allowance = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="FACTOR",
        rich_help_panel=STEP,
        help="on balanced routed rows, instead of the table's",
    ),
]
Dispatcher = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=STEP,
        help="auto, alltoall, allgather, hybridep or deepep",
    ),
]
HeadChunk = Annotated[
    int,
    typer.Option(metavar="N", rich_help_panel=STEP, help="tokens in a chunk of the head"),
]
Coefficients = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH",
        rich_help_panel=STEP,
        help="coefficient table: a shipped name, or the path of a .toml",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|SIZE",
        rich_help_panel=ELSE,
        help="name in conf/device, or an amount such as 80GiB",
    ),
]
Expandable = Annotated[
    bool,
    typer.Option(
        "--expandable",
        rich_help_panel=ELSE,
        help="PyTorch's allocator has expandable_segments:True, which loses less to fragments",
    ),
]
HeldTokens = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=ELSE,
        help="tokens, padded, that the held HybridEP buffer takes",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", rich_help_panel=ELSE, help="print JSON")]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=ELSE, help="also write a page there"),
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=ELSE,
        help="also write the decision there, for peakcast replay",
    ),
]
