"""Slurm: whether it answers, keeps accounts, and starts things by the clock."""

import os
import shutil
from collections.abc import Iterator

from pipeline.doctor.finding import Finding, absent, broken, here
from pipeline.doctor.probe import ask

CLUSTER = "launcher=slurm"
BY_THE_CLOCK = "peakcast schedule by scrontab"


def slurm() -> Iterator[Finding]:
    """Ask Slurm for its partitions, its accounts and its clock."""
    answer = ask(["sinfo", "--noheader", "--format=%P %D"])
    if answer is None:
        fix = "run on a login node, or install Slurm's client commands"
        for name, what in (("slurm", CLUSTER), ("accounting", CLUSTER), ("scrontab", BY_THE_CLOCK)):
            yield absent(name, "no sinfo on PATH", what, fix)
        return
    if answer.output is None:
        known = "SLURM_CONF" in os.environ
        fix = (
            "see that slurmctld runs where the file that SLURM_CONF names says"
            if known
            else "set SLURM_CONF, or see that slurmctld runs (scontrol ping)"
        )
        yield broken("slurm", f"sinfo: {answer.trouble}", CLUSTER, fix)
        for name, what in (("accounting", CLUSTER), ("scrontab", BY_THE_CLOCK)):
            yield absent(name, "Slurm does not answer", what, fix)
        return
    partitions = ", ".join(
        f"{name} ({nodes} nodes)" for name, nodes in map(str.split, answer.output.splitlines())
    )
    if partitions:
        yield here("slurm", partitions, CLUSTER)
    else:
        yield broken("slurm", "no partition", CLUSTER, "ask for access to one: sinfo shows none")
    yield _accounting()
    yield _scrontab()


def _accounting() -> Finding:
    fix = "have slurmdbd set up (AccountingStorageType); without it no final state is known"
    answer = ask(["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID"])
    if answer is None:
        return absent("accounting", "no sacct on PATH", CLUSTER, fix)
    if answer.output is None:
        return broken("accounting", f"sacct: {answer.trouble}", CLUSTER, fix)
    return here("accounting", "sacct answers", CLUSTER)


def _scrontab() -> Finding:
    fix = "have Slurm built with it and ScronParameters=enable set, or use the crontab entry"
    if shutil.which("scrontab") is None:
        return absent("scrontab", "this Slurm is built without it", BY_THE_CLOCK, fix)
    answer = ask(["scontrol", "show", "config"])
    settings = (answer.output if answer else None) or ""
    enabled = any(
        line.startswith("ScronParameters") and "enable" in line for line in settings.splitlines()
    )
    if enabled:
        return here("scrontab", "enabled", BY_THE_CLOCK)
    return absent("scrontab", "Slurm does not take entries", BY_THE_CLOCK, fix)
