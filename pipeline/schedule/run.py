"""A scheduled sweep: priced with the last certified table, run as far as new, held to a baseline.

Under the schedule's folder, ``outputs/<study>`` by default, lie one folder a sweep, named by its
date (UTC; with a number behind where the code or the table changed within a day), the baseline, and
``tables/`` for tables that were fitted from its sweeps.
"""

import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path

from jobs.launch import run_module
from pipeline.asked import forget_asked, read_asked
from pipeline.schedule.baseline import (
    Baseline,
    figures_of,
    improved,
    read_baseline,
    worse,
    write_baseline,
    write_document,
)
from pipeline.schedule.carry import FILE, carry_over, fingerprint, fingerprint_of
from pipeline.schedule.certified import last_certified
from pipeline.schedule.entries import Schedule
from pipeline.schedule.lease import hold
from pipeline.store import read_store
from planner.errors import ConfigError

NO_WORSE, WORSE, BAD_INPUT = 0, 1, 2
BUSY = 75  # sysexits.h, EX_TEMPFAIL: try again later
SWEEP = re.compile(r"\d{4}-\d{2}-\d{2}(\.\d+)?")


def run(schedule: Schedule, say: Callable[[str], None], *, accept: bool = False) -> int:
    """Run what is new, compare it with the baseline, and return the exit code.

    Parameters
    ----------
    accept
        Take this sweep's figures as the baseline, whatever they are.

    Raises
    ------
    LeaseHeldError
        When the schedule is being run already.
    ConfigError
        When lease, baseline or verdict cannot be read or written, or the sweep is bad input.
    OSError
        When the folder cannot be made, or a record cannot be taken over into it.
    """
    path = schedule.home / "baseline.json"
    schedule.home.mkdir(parents=True, exist_ok=True)

    def lost() -> None:
        say("the lease was taken over while this process slept; it stops")
        os.kill(os.getpid(), signal.SIGTERM)

    with hold(schedule.home / ".lease", lost, say):
        before = read_baseline(path)
        choice = last_certified(schedule.coefficients, [schedule.home / "tables"])
        for line in choice.why:
            say(line)
        sweep = _sweep_folder(schedule.home, fingerprint(choice.coefficients), _today(), say)
        name = f"{schedule.study}-{sweep.name}"
        forget_asked(sweep)
        code = run_module("pipeline", *_arguments(schedule, name, sweep, choice.coefficients))
        if code == BAD_INPUT:
            raise ConfigError(f"the sweep {name} could not begin; see above")
        asked = read_asked(sweep)
        store = read_store(sweep).only(asked)
        figures = figures_of(store, name, (schedule.coefficients, choice.coefficients))
        reasons = worse(figures, before or {})
        absent = set(asked) - {cell.key for cell in store.cells}
        reasons += [f"{key}: asked for, and left no record" for key in sorted(absent)]
        if code and not reasons:
            reasons.append(f"the sweep ended with code {code}")
        verdict = {"sweep": name, "coefficients": choice.coefficients, "reasons": reasons}
        cells = {one: asdict(cell) for one, cell in figures.items()}
        write_document(sweep / "verdict.json", verdict | {"cells": cells})
        if accept or not reasons:
            write_baseline(path, _next_baseline(figures, before or {}, accept))
        return _tell(schedule, name, reasons, say, first=before is None, accept=accept)


def _arguments(schedule: Schedule, name: str, sweep: Path, coefficients: str) -> list[str]:
    """Return the sweep's command line.

    A table that the overrides do not name is an axis of one value: given as an override it would
    take the place of the tables, too, that the study's cells beside its axes name.
    """
    mine = [o for o in schedule.overrides if o.startswith("coefficients=")]
    arguments = [f"study={schedule.study}", *(o for o in schedule.overrides if o not in mine)]
    arguments += [f"study.name={name}", f"out={_quoted(str(sweep))}"]
    if mine:
        arguments.append(f"coefficients={_quoted(coefficients)}")
    elif coefficients != schedule.coefficients:
        axis = _quoted(coefficients).replace('"', r"\"")
        arguments.append(f'+hydra.sweeper.params.coefficients="{axis}"')
    return arguments


def _next_baseline(now: Baseline, before: Baseline, accept: bool) -> Baseline:
    return {**before, **now} if accept else improved(now, before)


def _tell(
    schedule: Schedule,
    name: str,
    reasons: Sequence[str],
    say: Callable[[str], None],
    *,
    first: bool,
    accept: bool,
) -> int:
    """Say how it went; send an alert where it got worse. Return the exit code."""
    for reason in reasons:
        say(f"worse: {reason}")
    if accept:
        say(f"{name} is the baseline from now on")
        return NO_WORSE
    if not reasons:
        say(f"{name}: " + ("the first sweep; it is the baseline" if first else "no worse"))
        return NO_WORSE
    tracker = schedule.settings.tracker
    if tracker.mode != "disabled":
        from pipeline.track import TrackerError, alert

        try:
            alert(
                f"{name} is worse than its baseline",
                "\n".join(reasons),
                out=schedule.home,
                mode=tracker.mode,
                project=tracker.project,
                group=name,
            )
        except TrackerError as error:
            say(str(error))
    say(f"{name}: worse than the baseline, which stays; --accept makes this sweep the baseline")
    return WORSE


def _today() -> date:
    return datetime.now(UTC).date()


def _sweep_folder(
    home: Path, mark: dict[str, str], today: date, say: Callable[[str], None]
) -> Path:
    """Return the folder of today's sweep with this fingerprint, begun from the last such one."""
    sweeps = sorted(
        (p for p in home.iterdir() if p.is_dir() and SWEEP.fullmatch(p.name)), key=_order
    )
    of_today = [p for p in sweeps if p.name.partition(".")[0] == today.isoformat()]
    same = [p for p in sweeps if fingerprint_of(p) == mark]
    number = _order(of_today[-1])[1] + 1 if of_today else 0
    sweep = home / (f"{today}.{number}" if number else f"{today}")
    if of_today and of_today[-1] in same:
        sweep = of_today[-1]
    sweep.mkdir(exist_ok=True)
    write_document(sweep / FILE, mark)
    if same and same[-1] != sweep:
        count = carry_over(same[-1], sweep)
        say(f"{count} cells were recorded by {same[-1].name} with the same code; the rest is run")
    return sweep


def _order(sweep: Path) -> tuple[str, int]:
    day, _, number = sweep.name.partition(".")
    return day, int(number or 0)


def _quoted(value: str) -> str:
    """Quote a value for Hydra's grammar, in which commas and braces have a meaning."""
    return "'" + value.replace("'", r"\'") + "'"
