"""What a sweep says while it runs: a bar on a terminal, plain lines elsewhere."""

from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jobs.launch import Event
from jobs.spec import CellSpec
from pipeline.labels import Named, told_apart

STYLES = {
    "failed": "red",
    "absent": "red",
    "retried": "yellow",
    "resumed": "yellow",
    "refused": "yellow",
    "left": "yellow",
}
PLAIN_WIDTH = 160  # of what is not a terminal: nothing is folded


def make_console() -> Console:
    """Return the console that a sweep writes to."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


class Narrator:
    """Tells of cells as they start and end, told apart by name; a context manager."""

    def __init__(self, console: Console, cells: Sequence[CellSpec]) -> None:
        specs = {cell.key: cell for cell in cells}
        named = told_apart([Named(key, spec.label, spec) for key, spec in specs.items()])
        shared = Counter(spec.label for spec in specs.values())
        self.names = {
            key: named[key] if shared[spec.label] > 1 else spec.label for key, spec in specs.items()
        }
        self.console, self.total, self.done = console, len(specs), 0
        self.running: dict[str, str] = {}
        self.bar = Progress(
            TextColumn("[bold]cells"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", total=self.total)

    def __enter__(self) -> "Narrator":
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def say(self, line: str, style: str = "") -> None:
        """Print a line, above the bar where there is one."""
        self.console.print(line, style=style, soft_wrap=True, markup=False)

    def tell(self, event: Event, detail: str) -> None:
        """Tell of one event; ``detail`` follows its name and time."""
        spec, kind = event.spec, event.kind
        name = self.names[spec.key]
        if kind in ("started", "queued"):
            self.running[spec.key] = name
            again = f", attempt {event.attempt + 1}" if event.attempt else ""
            where = f": {detail}" if detail else ""
            word = {"started": "start"}.get(kind, kind)
            self.say(f"{word:<8} {name} ({len(spec.ranks)} ranks{again}){where}", "dim")
        else:
            self.running.pop(spec.key, None)
            goes_on = kind in ("retried", "resumed")
            self.done += not goes_on
            took = f"{event.seconds:.1f} s" if kind != "skipped" else "recorded already"
            count = "" if goes_on else f"[{self.done}/{self.total}] "
            self.say(f"{kind:<8} {count}{name}, {took}: {detail}", STYLES.get(kind, ""))
        self.bar.update(
            self.task, completed=self.done, description=" · ".join(self.running.values())
        )
