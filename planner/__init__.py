"""Peakcast's planner: prices every byte that a rank will hold. Standard library only.

>>> pricer = compile_pricer(model, Topology(cp=2, ep=2), Step(), coefficients="art-shared")
>>> print(pricer.price(Batch(tokens=194_753)))
"""

from planner.admission import Admit, Decision, Refuse, Split
from planner.batch import Batch, Layout, lay_out
from planner.children import Child
from planner.coefficients import Coefficients, Unpriced, shipped_tables
from planner.errors import ConfigError, PlannerError, TableError
from planner.fragments import Fragments, fragments_of
from planner.lines import Line
from planner.memory import Demand, MemorySample
from planner.mixers import LatentAttention, LinearAttention
from planner.model import Model
from planner.moments import Moment, Phase
from planner.plan_report import PlanReport, ReportError
from planner.price import MomentPrice, Price
from planner.pricer import Pricer, compile_pricer
from planner.profile import Profile
from planner.requests import Prefix, Request, read_requests
from planner.routing import Routing
from planner.search import Placement, topologies
from planner.state import LiveState
from planner.step import Step
from planner.topology import Topology
from planner.units import Bytes, Rows, Tokens, gib

__all__ = [
    "Admit",
    "Batch",
    "Bytes",
    "Child",
    "Coefficients",
    "ConfigError",
    "Decision",
    "Demand",
    "Fragments",
    "LatentAttention",
    "Layout",
    "Line",
    "LinearAttention",
    "LiveState",
    "MemorySample",
    "Model",
    "Moment",
    "MomentPrice",
    "Phase",
    "Placement",
    "PlanReport",
    "PlannerError",
    "Prefix",
    "Price",
    "Pricer",
    "Profile",
    "Refuse",
    "ReportError",
    "Request",
    "Routing",
    "Rows",
    "Split",
    "Step",
    "TableError",
    "Tokens",
    "Topology",
    "Unpriced",
    "compile_pricer",
    "fragments_of",
    "gib",
    "lay_out",
    "read_requests",
    "shipped_tables",
    "topologies",
]
