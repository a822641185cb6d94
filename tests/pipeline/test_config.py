"""From Hydra's configuration to specs: every file of conf/, and every kind of bad input."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

import conf
from jobs.spec import CellSpec
from pipeline.config import cell_of, settings_of, topology_name
from pipeline.launcher import CellLauncher
from planner.errors import ConfigError
from planner.topology import Topology

CONF = Path(conf.__file__).parent
GROUPS = (
    *("model", "topology", "weights", "workload", "step", "calls"),
    *("meter", "launcher", "tracker", "study"),
)
CHOICES = [
    (group, choice.stem) for group in GROUPS for choice in sorted((CONF / group).glob("*.yaml"))
]

BESIDE = {"skewed": ("meter=fake",), "shards": ("meter=fake", "topology=ep1_cp2")}
"""What a choice needs beside it: plans, which real ranks cannot follow."""


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config", list(overrides))


def cell(*overrides: str) -> CellSpec:
    return cell_of(composed(*overrides))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_builds_a_cell(group: str, choice: str) -> None:
    """Reference: the dataclasses, which reject an unknown, missing or ill-typed field."""
    config = composed(f"{group}={choice}", *BESIDE.get(choice, ()))
    spec = cell_of(config)
    assert CellSpec.from_dict(spec.to_dict()) == spec
    assert settings_of(config).folder == Path("outputs", choice if group == "study" else "default")


def test_there_are_choices_in_every_group() -> None:
    """Reference: the defaults list of conf/config.yaml, so that the test above cannot run dry."""
    defaults = [key for entry in OmegaConf.load(CONF / "config.yaml").defaults for key in entry]
    assert {group for group, _ in CHOICES} == set(GROUPS)
    assert set(GROUPS) == {key for key in defaults if key in GROUPS or (CONF / key).is_dir()}


@pytest.mark.parametrize("choice", [choice for group, choice in CHOICES if group == "topology"])
def test_a_topology_is_named_by_its_degrees(choice: str) -> None:
    """Reference: the file's name, which people type."""
    assert cell(f"topology={choice}").topology_name == choice


def test_a_topology_name_tells_what_ep_and_cp_do_not_imply() -> None:
    """Reference: by hand; ep2_cp1 implies dp 2, so dp 4 must be said."""
    assert topology_name(Topology(dp=4, ep=2)) == "ep2_cp1_dp4"
    assert topology_name(Topology(dp=2, ep=2)) == "ep2_cp1"
    assert topology_name(Topology(dp=1, tp=2, ep=2)) == "ep2_cp1_tp2"


@pytest.mark.parametrize(
    ("choice", "world"),
    [
        ("ep1_cp1", 1),
        ("ep1_cp2", 2),
        ("ep2_cp1", 2),
        ("ep2_cp2", 2),
        ("ep4_cp1", 4),
        ("ep4_cp2", 4),
    ],
)
def test_worlds_of_the_default_study(choice: str, world: int) -> None:
    """Reference: the study's definition, worlds 1, 2, 2, 2, 4, 4."""
    assert cell(f"topology={choice}").topology.world == world


def test_the_models_are_the_published_ones() -> None:
    """Reference: num_hidden_layers, hidden_size, experts, top-k and moe_intermediate_size of the
    two models' config.json; 30 of Qwen3.6's 40 layers are linear attention."""
    big, small = cell("model=qwen3_6_35b_a3b").model, cell("model=qwen3_30b_a3b").model
    shape = ("num_layers", "hidden", "num_experts", "top_k", "expert_hidden", "vocab")
    assert [getattr(big, name) for name in shape] == [40, 2048, 256, 8, 512, 248320]
    assert [getattr(small, name) for name in shape] == [48, 2048, 128, 8, 768, 151936]
    assert big.num_linear_attention_layers == 30
    assert (small.num_heads * small.head_dim, small.shared_expert_hidden) == (4096, 0)


def test_the_order_of_overrides_does_not_change_the_key() -> None:
    """Reference: the law; a key names what decides a result."""
    one = cell("topology=ep2_cp2", "meter.budget_gib=0.5", "calls=cold")
    other = cell("calls=cold", "meter.budget_gib=0.5", "topology=ep2_cp2")
    assert one.key == other.key


@pytest.mark.parametrize(
    "override",
    ["meter.budget_gib=0.5", "calls=cold", "weights.seed=1", "workload.seed=1", "step.dtype=fp32"],
)
def test_what_decides_a_result_changes_the_key(override: str) -> None:
    """Reference: the law's other half."""
    assert cell(override).key != cell().key


@pytest.mark.parametrize("override", ["out=elsewhere", "launcher.max_ranks=2", "tracker=disabled"])
def test_what_decides_no_result_leaves_the_key(override: str) -> None:
    """Reference: the law; a move of the folder must not lose its records."""
    assert cell(override).key == cell().key


def test_a_whole_number_will_do_for_a_number() -> None:
    """Reference: 1 and 1.0 are one budget, hence one key."""
    assert cell("meter.budget_gib=1").key == cell("meter.budget_gib=1.0").key


def test_pretrained_weights_lie_in_the_cache_unless_a_path_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reference: the XDG base directory specification."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cell("weights=pretrained").weights.path
    assert path is not None
    assert Path(path).parent == tmp_path / "peakcast" / "checkpoints"
    assert cell("weights=pretrained", "weights.path=/some/where").weights.path == "/some/where"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+topology.epp=2", r"topology has unknown key 'epp'; known: cp, dp, ep"),
        ("+colour=red", r"unknown key colour; the configuration has .*coefficients"),
        ("topology.ep=two", r"topology.ep must be an integer; got 'two'"),
        ("topology.ep=true", r"topology.ep must be an integer; got True"),
        ("topology.ep=2", r"ep·etp = 2·1 must divide .*; ep can be 1, or"),
        ("meter.budget_gib=lots", r"meter.budget_gib must be a number; got 'lots'"),
        ("meter.budget_gib=-1", r"Meter.budget_gib must be a positive number .*got -1"),
        ("meter.ledger=perhaps", r"meter.ledger must be true or false; got 'perhaps'"),
        ("workload.requests=512", r"workload.requests must be a list, .*got 512"),
        ("workload.requests=[512,x]", r"workload.requests\[1\] must be an integer; got 'x'"),
        ("workload.requests=[]", r"give at least one request"),
        ("calls.measured=0", r"Calls.measured must be at least 1; got 0"),
        ("model.top_k=17", r"top_k = 17 is more than num_experts = 16"),
        ("weights.kind=trained", r"Weights.kind must be one of random, pretrained"),
        ("~step", r"the configuration: .*missing 1 required .*argument: .step."),
        ("coefficients=???", r"does not resolve: Missing mandatory value: coefficients"),
        ("out=${nowhere}", r"does not resolve: Interpolation key 'nowhere' not found"),
    ],
)
def test_bad_input_is_named_with_its_value(override: str, message: str) -> None:
    """Reference: the message itself: what is wrong, the value, the way out."""
    with pytest.raises(ConfigError, match=message):
        cell(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("launcher.max_ranks=0", r"launcher.max_ranks must be at least 1; got 0"),
        ("launcher.timeout_min=0", r"launcher.timeout_min must be above 0; got 0"),
        ("launcher.entry=jobs.rank", r"launcher.entry must read module:function; got 'jobs.rank'"),
        ("tracker.mode=maybe", r"tracker.mode must be one of offline, online, disabled"),
        ("+launcher.speed=9", r"launcher has unknown key 'speed'"),
    ],
)
def test_bad_settings_are_named_with_their_value(override: str, message: str) -> None:
    """Reference: the message itself."""
    with pytest.raises(ConfigError, match=message):
        settings_of(composed(override))


def beside(*overrides: str) -> list[list[str]]:
    """Overrides of the cells that a command line's study adds to its axes."""
    with initialize_config_module("conf", version_base="1.3"):
        config = compose("config", list(overrides), return_hydra_config=True)
    launcher = CellLauncher()
    launcher.config = config
    return launcher._beside()


@pytest.mark.parametrize("study", ["default", "full_scale"])
def test_each_cell_beside_a_studys_axes_is_one(study: str) -> None:
    """Reference: the dataclasses; none is another's, and none needs what the user gave."""
    cells = [cell(*overrides) for overrides in beside(f"study={study}", "tracker=disabled")]
    assert len(cells) == len({spec.key for spec in cells}) > 1
    for spec in cells:  # the axes have calls with a backward, of one table and backend
        at_full_size = (spec.backend, spec.coefficients) == ("fake", "art-traced")
        assert at_full_size or not spec.workload.gradients


@pytest.mark.parametrize("choice", ["topology=ep2_cp2", "+meter.ranks=[0]", "calls=cold,warm"])
def test_who_chooses_cells_gets_those_alone(choice: str) -> None:
    """Reference: the contract of study.beside."""
    assert beside("tracker=disabled") != []
    if "," not in choice:
        assert beside(choice) == []
    else:
        launcher = CellLauncher()
        launcher.config = OmegaConf.create(
            {"hydra": {"overrides": {"task": [choice]}}, "study": {"beside": [["a=b"]]}}
        )
        assert launcher._beside() == []
