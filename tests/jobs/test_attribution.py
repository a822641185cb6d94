"""Live storages go to the term of the first rule that matches; what matches none is named."""

import pytest
import torch
from torch import nn

from jobs.meter.allocation import Allocation
from jobs.meter.attribution import Hand, Rule, RuleError, attribute
from jobs.meter.ledger import Ledger

SYMBOLS = {
    "T": frozenset({96}),
    "H": frozenset({64}),
    "F": frozenset({256}),
    "R": frozenset({7, 9}),
}

HAND = Hand("recompute", 2)


def allocation(**tags) -> Allocation:
    """One storage of a block; tags not given are those of a residual sum in forward."""
    plain = {
        "number": 1,
        "nbytes": 512,
        "call": 0,
        "phase": "forward",
        "module": "layers.3.mlp",
        "op": "add.Tensor",
        "node": "",
        "shape": (96, 1, 64),
        "dtype": "bfloat16",
    }
    return Allocation(**(plain | tags))


@pytest.mark.parametrize(
    ("conditions", "matching", "other"),
    [
        ({"module": r"layers\.\d+\.mlp"}, {}, {"module": "layers.3.mlp.router"}),
        ({"op": r"add\..*|mul\..*"}, {"op": "mul.Tensor"}, {"op": "mm"}),
        ({"node": "Mm.*"}, {"node": "MmBackward0"}, {"node": "AddBackward0"}),
        ({"dtype": "b.*"}, {}, {"dtype": "float32"}),
        ({"phases": ("forward", "recompute")}, {"phase": "recompute"}, {"phase": "backward"}),
        ({"gradient": False}, {}, {"gradient_of": "layers.3.mlp.weight"}),
        ({"gradient": True}, {"gradient_of": "layers.3.mlp.weight"}, {}),
        ({"shape": ("T", "H")}, {}, {"shape": (64, 96)}),
        ({"shape": ("T", "H")}, {"shape": (1, 96, 64)}, {"shape": (2, 96, 64)}),
        ({"shape": ("...", "H")}, {"shape": (2, 96, 64)}, {"shape": (2, 64, 96)}),
        ({"shape": ("R",)}, {"shape": (9, 1)}, {"shape": (8,)}),
        ({"shape": ("*", "H")}, {"shape": (5, 64)}, {"shape": (5, 5, 64)}),
        ({"shape": ()}, {"shape": (1, 1)}, {"shape": (2,)}),
        ({"least": 1}, {}, {"module": "layers.2.mlp"}),
        ({"most": 0}, {"module": "layers.1"}, {}),
        ({"least": 0}, {}, {"module": "embedding"}),
    ],
)
def test_each_condition_decides(conditions, matching, other):
    """Reference: the definition of each condition, one storage inside it and one outside."""
    rule = Rule(term="a.b", why="test", **conditions)
    assert rule.matches(allocation(**matching), SYMBOLS, HAND)
    assert not rule.matches(allocation(**other), SYMBOLS, HAND)


def test_what_is_at_hand_decides():
    """Reference: the definition; outside the layers the head is at hand, above the last of them."""
    rule = Rule(term="a.b", why="test", hand=("head",), most=-1)
    assert rule.matches(allocation(), SYMBOLS, Hand.of("backward", "decoder.final_layernorm", 5))
    assert not rule.matches(allocation(), SYMBOLS, Hand.of("backward", "head", 4))
    assert not rule.matches(allocation(), SYMBOLS, Hand.of("backward", "decoder.layers.4.mlp", 5))


def test_the_first_rule_decides_and_every_byte_is_somewhere():
    """Reference: the law that terms and the unattributed rest sum to what was given."""
    rules = (
        Rule(term="experts.rows", why="rows", shape=("R", "H")),
        Rule(term="residual.stream", why="anything of a layer", module=r"layers\..*"),
        Rule(term="never.used", why="shadowed by the rule before", module=r"layers\.3\.mlp"),
    )
    live = [
        allocation(shape=(7, 64), nbytes=1024),
        allocation(nbytes=2048),
        allocation(nbytes=512),
        allocation(module="head", nbytes=512, op="exp"),
        allocation(module="head", nbytes=4096, op="mm"),
    ]
    found = attribute(live, rules, SYMBOLS, HAND)
    assert found.terms == {"experts.rows": 1024, "residual.stream": 2560}
    assert [a.op for a in found.unattributed] == ["mm", "exp"]
    assert found.used == {rules[0], rules[1]}
    assert sum(found.terms.values()) + found.unattributed_bytes == sum(a.nbytes for a in live)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"phases": ("forwards",)}, "phases has forwards"),
        ({"hand": ("between",)}, "hand has between"),
        ({"module": "layers.("}, "module is no regular expression"),
        ({"shape": ("...",)}, "says nothing"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(conditions, message):
    """Reference: the documented errors."""
    with pytest.raises(RuleError, match=message):
        Rule(term="a.b", why="test", **conditions)


def test_a_symbol_without_sizes_is_named():
    """Reference: the documented error, naming the symbol and those that are known."""
    rule = Rule(term="head.logits", why="test", shape=("T", "V"))
    with pytest.raises(RuleError, match=r"head\.logits: no sizes for V; given are T, H, F, R"):
        rule.matches(allocation(), SYMBOLS, HAND)


def test_the_peak_of_a_toy_model_goes_to_its_terms():
    """Reference: derived by hand.

    x (T, H) → up (T, F) → exp (T, F) → down (T, H). up's result dies with its name, for frozen up
    saves nothing and exp its own result. At exp's backward there live exp's result, the gradient of
    it and, just made, that of its argument; the output; and the gradient of down's weight.
    """
    model = nn.Sequential()
    model.add_module("up", nn.Linear(64, 256, bias=False).requires_grad_(False))
    model.add_module("down", nn.Linear(256, 64, bias=False))
    x, seed = torch.ones(96, 64, requires_grad=True), torch.ones(96, 64)
    ledger = Ledger()
    ledger.attach(model)
    ledger.register("x", x)
    ledger.register("seed", seed)
    with ledger.call() as call:
        y = model.down(model.up(x).exp())
        call.forward_done()
        y.backward(seed)
        del y
    rules = (
        Rule(term="adapters.gradients", why="parameter gradients", gradient=True),
        Rule(term="experts.fc2_inputs", why="(T, F) and its gradients", shape=("T", "F")),
        Rule(term="experts.fc2_outputs", why="down's output", module="down", shape=("T", "H")),
    )
    found = attribute(call.result.at_peak, rules, SYMBOLS, HAND)
    wide = 96 * 256 * 4
    assert found.terms == {
        "adapters.gradients": 64 * 256 * 4,
        "experts.fc2_inputs": 3 * wide,
        "experts.fc2_outputs": 96 * 64 * 4,
    }
    assert found.unattributed == ()
