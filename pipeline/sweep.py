"""A sweep, from configurations to a report: convert, prepare, launch, track, show."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

from omegaconf import DictConfig

from jobs.launch import Event, launch, require_room
from jobs.record import record_path
from jobs.spec import CellSpec
from pipeline.asked import write_asked
from pipeline.checkpoints import prepare, routing_of
from pipeline.config import Settings, cell_of, settings_of
from pipeline.folder import claim
from pipeline.progress import Narrator, make_console
from pipeline.report.table import print_outcomes, print_table
from pipeline.store import Row, Store, read_store, rows, untracked
from pipeline.summary import one_line, worst_percent
from planner import compile_pricer
from planner.errors import ConfigError
from planner.routing import Routing


class Sweep:
    """One run of the pipeline: cells come in through `run`, as often as a sweeper likes.

    A Hydra application whose task function is `cell`; the Launcher calls `open` and `run`.
    """

    def __init__(self) -> None:
        self.console = make_console()
        self.settings: Settings | None = None
        self.lock: IO[str] | None = None
        self.ended: dict[str, Event] = {}
        self.started = time.monotonic()

    @property
    def cells_seen(self) -> bool:
        """Whether any cell has been skipped or run yet."""
        return bool(self.ended)

    def cell(self, config: DictConfig) -> float:
        """Run a single cell: what Hydra calls in its RUN mode."""
        self.open(config)
        return self.run([config])[0]

    def open(self, config: DictConfig) -> None:
        """Claim the results folder, and see that what is asked for can be done.

        Raises
        ------
        ConfigError
            When the folder cannot be had, or the tracker lacks what it needs.
        """
        self.settings = settings_of(config)
        if self.settings.tracker.mode == "online":
            from pipeline.track import require_login

            require_login()
        self.lock = claim(self.settings.folder)

    def run(self, configs: Sequence[DictConfig]) -> list[float]:
        """Run cells side by side; return each one's worst absolute error in percent (nan: none).

        Raises
        ------
        ConfigError
            When any cell is bad input; nothing has started then.
        """
        settings = self._settings()
        for config in configs:
            _require_same(settings_of(config), settings)
        cells = [cell_of(config) for config in configs]
        require_room(cells, settings.launcher)
        for cell in cells:
            _require_priceable(cell, Routing.balanced())
        cells = prepare(cells, self._say)
        for cell in cells:
            _require_priceable(cell, routing_of(cell))
        with Narrator(self.console, cells) as narrator:
            events = launch(
                cells,
                settings.folder,
                settings.launcher,
                lambda event: narrator.tell(event, self._detail(event)),
                collect=settings.collect,
            )
        self.ended |= {event.spec.key: event for event in events}
        return self._merits(events)

    def close(self) -> int:
        """Track, report and show what was run; return the exit code."""
        if self.settings is None or not self.ended:
            return 0
        out = self.settings.folder
        store = read_store(out)
        chosen = store.only(self.ended)
        left = [event for event in self.ended.values() if event.kind == "left"]
        ran = [event for event in self.ended.values() if event.kind not in ("skipped", "left")]
        write_asked(out, self.ended)
        print_table(self.console, chosen)
        print_outcomes(self.console, chosen)
        page = out / "report.html"
        if ran or self.settings.collect or not page.exists():
            from pipeline.report.page import write_page

            write_page(store, page)
        self._track(chosen)
        self._say(f"records  {out / 'records'}")
        self._say(f"report   {page}")
        seconds = time.monotonic() - self.started
        if left:
            self._say(
                f"{len(left)} of {len(self.ended)} cells are on the cluster; the same command with "
                "collect=true gathers them"
            )
        if ran:
            self._say(f"{len(ran)} of {len(self.ended)} cells run in {seconds:.0f} s")
        elif not left:
            self._say(
                f"nothing to do: all {len(self.ended)} cells are recorded ({seconds:.1f} s); "
                "remove a record, or change the cell, to run it again"
            )
        return 1 if any(event.kind in ("failed", "absent") for event in ran) else 0

    def _settings(self) -> Settings:
        assert self.settings is not None, "open comes first"
        return self.settings

    def _detail(self, event: Event) -> str:
        if event.kind not in ("skipped", "ok", "refused"):
            return event.why
        return one_line(rows(self._recorded([event])))

    def _merits(self, events: Sequence[Event]) -> list[float]:
        by_key: dict[str, list[Row]] = defaultdict(list)
        for row in rows(self._recorded(events)):
            by_key[row["key"]].append(row)
        return [worst_percent(by_key[event.spec.key]) for event in events]

    def _recorded(self, events: Sequence[Event]) -> Store:
        """Read the records of these cells alone: a sweep may have thousands of others."""
        out = self._settings().folder
        paths = {
            record_path(out, event.spec.key, event.attempt, rank)
            for event in events
            for rank in event.spec.ranks
        }
        return read_store(out, [path for path in paths if path.exists()])

    def _track(self, store: Store) -> None:
        """Write the W&B runs that are missing; a failing tracker is told of and costs nothing."""
        settings = self._settings()
        tracker = settings.tracker
        if tracker.mode == "disabled" or not untracked(store, tracker.mode):
            return
        from pipeline.track import TrackerError, sync_command, track

        try:
            written = track(
                store, mode=tracker.mode, project=tracker.project, group=settings.study.name
            )
        except TrackerError as error:
            self._say(str(error), style="red")
            return
        self._say(f"W&B      {written} runs written, {settings.folder / 'wandb'}")
        if tracker.mode == "offline":
            self._say(f"         to send them: {sync_command(settings.folder)}")

    def _say(self, line: str, style: str = "") -> None:
        self.console.print(line, style=style, soft_wrap=True, markup=False)


def _require_same(one: Settings, all_of_them: Settings) -> None:
    """Check that a cell does not sweep what a sweep has but one of."""
    for part in ("study", "launcher", "tracker"):
        mine, ours = asdict(getattr(one, part)), asdict(getattr(all_of_them, part))
        for name in mine:
            _require_one(f"{part}.{name}", mine[name], ours[name])
    _require_one("out", one.out, all_of_them.out)


def _require_one(name: str, mine: object, ours: object) -> None:
    if mine != ours:
        raise ConfigError(
            f"{name} is one for all cells of a sweep; got {name} = {mine!r} beside {ours!r}; "
            "give one value, and sweep the others by commands of their own"
        )


def _require_priceable(cell: CellSpec, routing: Routing) -> None:
    """Check that the planner can price a cell; raises its ConfigError or TableError."""
    compile_pricer(
        cell.model, cell.topology, cell.step, coefficients=cell.coefficients, routing=routing
    )
