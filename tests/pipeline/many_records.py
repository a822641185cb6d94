"""A sweep of many records, as large and as irregular as real ones, in a second or so."""

import json
import random
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "default_study"
POINTS = 96  # of a timeline, as the meters keep
PHASES = ("forward", "recompute", "backward")


def write_many(out: Path, records: int, seed: int = 7) -> int:
    """Write at least ``records`` records under ``out``; return how many.

    Cells are those of the recorded default study under other LoRA ranks, its weights
    also called pretrained. Every term of every
    record gets a residual of its own, so that nothing packs better than it would in earnest.
    """
    draw = random.Random(seed)
    templates = [
        (json.loads(spec.read_text()), _lines(spec.stem)) for spec in _specs() if _lines(spec.stem)
    ]
    for part in ("specs", "records"):
        (out / part).mkdir(parents=True)
    written = number = 0
    while written < records:
        spec, ranks = templates[number % len(templates)]
        key = f"{number:016x}"
        weights = ("random", "pretrained")[number // len(templates) % 2]
        spec["step"]["lora_rank"] = 8 + number
        spec["weights"]["name"] = weights
        spec["calls"] = {"name": "pair", "warmup": 0, "measured": 2}
        label = f"{spec['topology_name']} {weights} pair"
        (out / "specs" / f"{key}.json").write_text(json.dumps(spec))
        for rank, lines in enumerate(ranks):
            varied = [_varied(json.loads(line), key, label, draw) for line in lines]
            path = out / "records" / f"{key}.a0.r{rank}.jsonl"
            path.write_text("".join(json.dumps(one) + "\n" for one in varied))
            written += len(varied)
        number += 1
    return written


def _specs() -> list[Path]:
    return sorted((GOLDEN / "specs").glob("*.json"))


def _lines(key: str) -> list[list[str]]:
    files = sorted((GOLDEN / "records").glob(f"{key}.a0.r*.jsonl"))
    return [file.read_text().splitlines() for file in files]


def _varied(record: dict, key: str, label: str, draw: random.Random) -> dict:
    """Return the record as another cell's, its terms off by up to 3 % each."""
    planned, observed = record["planned"], record["observed"]
    terms = {name: int(size * draw.uniform(0.97, 1.03)) for name, size in planned["terms"].items()}
    size = sum(terms.values())
    copies = {name: float(1 + number % 4) for number, name in enumerate(planned["terms"])}
    where = [
        f"{PHASES[3 * at // POINTS]} decoder.layers.{at % 4}.mlp.experts.fc{1 + at % 2}"
        for at in range(POINTS)
    ]
    timeline = [[draw.randrange(size), one] for one in where]
    timeline[POINTS // 2][0] = size
    changed = {"terms": terms, "working_set_bytes": size, "timeline": timeline}
    return record | {
        "key": key,
        "label": label,
        "planned": planned | {"copies": copies, "bound_bytes": 2 * planned["bound_bytes"]},
        "observed": observed | changed,
    }
