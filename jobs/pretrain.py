"""Train the small model on text that ships with Python, and keep it with its routing.

``python -m jobs.pretrain --model MODEL.json --out FOLDER`` trains every weight of the model on one
rank, without a load-balancing loss, for a fixed number of steps (about half a minute on two cores),
so that routing comes out as skewed as training makes it. FOLDER then holds a checkpoint in Hugging
Face layout and ``routing.json``: each expert's share of the routed rows, per layer, on other text.
"""

import argparse
import json
import logging
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from jobs.backend import cpu
from jobs.checkpoint import ROUTING, CheckpointError, Recipe, digest, is_complete
from jobs.model.build import ModelUnderTest
from jobs.model.census import busiest_shares, held_out, routing_shares
from jobs.model.hf_files import load_pretrained, save_pretrained
from jobs.model.weights import draw_weights
from jobs.spec import read_model
from jobs.text import corpus_hash, text_of
from jobs.workload import LocalBatch, text_batch
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

REPORT_EVERY = 10
CLIP = 1.0

log = logging.getLogger("pretrain")


def pretrain(model: Model, folder: Path, recipe: Recipe) -> None:
    """Train, save and census ``model``; nothing is done if ``folder`` is complete already.

    The folder appears whole or not at all; of two that are made at once, one is kept.

    Raises
    ------
    CheckpointError
        When the folder exists and is no complete checkpoint.
    """
    if is_complete(folder):
        log.info("%s is complete", folder)
        return
    if folder.exists():
        raise CheckpointError(f"{folder} exists and is no complete checkpoint; remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    scratch.mkdir()
    try:
        with _one_rank(scratch):
            losses = _train(model, scratch, recipe)
            _take_census(model, scratch, recipe, losses)
        try:
            scratch.rename(folder)
        except OSError:
            if not is_complete(folder):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _one_rank(scratch: Path) -> Iterator[None]:
    meeting = scratch / "rendezvous"
    cpu.start(0, 1, Topology(), f"file://{meeting}")
    try:
        yield
    finally:
        cpu.stop()
        meeting.unlink(missing_ok=True)


def _train(model: Model, folder: Path, recipe: Recipe) -> list[float]:
    """Train in fp32, save in bf16; return the loss of each step, in nats per byte."""
    trained = ModelUnderTest(model, Step(dtype="fp32", recompute="none", lora_rank=0), "alltoall")
    draw_weights(trained, recipe.seed)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1.0, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: _rate(n, recipe))
    losses: list[float] = []
    begun = time.monotonic()
    for step, batch in enumerate(_training_batches(recipe), start=1):
        loss = trained(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step == 1 or step % REPORT_EVERY == 0 or step == recipe.steps:
            took = time.monotonic() - begun
            log.info("step %d/%d  loss %.3f  %.1f s", step, recipe.steps, losses[-1], took)
    save_pretrained(trained.to(torch.bfloat16), model, folder)
    return losses


def _rate(step: int, recipe: Recipe) -> float:
    rise = max(1, recipe.steps // 10)
    if step < rise:
        return recipe.learning_rate * (step + 1) / rise
    left = (recipe.steps - step) / max(1, recipe.steps - rise)
    return recipe.learning_rate * (0.1 + 0.9 * left)


def _training_batches(recipe: Recipe) -> Iterator[LocalBatch]:
    draw = random.Random(recipe.seed)
    size = len(text_of("training"))
    for _ in range(recipe.steps):
        starts = [draw.randrange(size) for _ in range(recipe.requests)]
        yield text_batch("training", starts, recipe.length)


def _take_census(model: Model, folder: Path, recipe: Recipe, losses: list[float]) -> None:
    """Read the checkpoint back, as a cell will, and write the routing of text it has not seen."""
    read = ModelUnderTest(model, Step(dtype="bf16", recompute="none", lora_rank=0), "alltoall")
    load_pretrained(read, model, folder)
    batches = held_out(recipe.length)
    shares = routing_shares(read, batches)
    with torch.no_grad():
        unseen = sum(read(batch).item() for batch in batches) / len(batches)
    routing = {
        "tokens": sum(batch.layout.tokens for batch in batches),
        "shares": shares,
        "text": corpus_hash(),
        "loss": {"first": losses[0], "last": losses[-1], "held_out": unseen},
    }
    (folder / ROUTING).write_text(json.dumps(routing) + "\n")
    log.info("loss on other text %.3f (first step %.3f)", unseen, losses[0])
    for ep in (2, 4):
        if model.num_experts % ep == 0:
            busiest = " ".join(f"{share:.2f}" for share in busiest_shares(shares, ep))
            log.info("busiest of %d expert ranks over an even share, per layer: %s", ep, busiest)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m jobs.pretrain", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="JSON of planner.Model fields")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="optimizer steps")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    model = read_model(json.loads(arguments.model.read_text()), str(arguments.model))
    pretrain(model, arguments.out, Recipe(steps=arguments.steps))
    log.info("%s  sha256 %s", arguments.out, digest(arguments.out)[:16])


if __name__ == "__main__":
    main()
