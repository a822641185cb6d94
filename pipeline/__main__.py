"""`python -m pipeline`: a Hydra application that sweeps cells, tracks them and reports.

Exit code: 0 every cell ran or was refused by the plan, 1 a cell failed, 2 bad input.
"""

import sys

import hydra

from pipeline.launcher import BadInput
from pipeline.sweep import Sweep


def main() -> int:
    """Run the command line; return the exit code."""
    sweep = Sweep()
    application = hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
    try:
        application(sweep.cell)()
        return sweep.close()
    except BadInput as bad:
        sys.stderr.write(f"error: {bad.code}\n")
        return 2
    except KeyboardInterrupt as interrupt:
        what = "; ".join(getattr(interrupt, "__notes__", ())) or "every job was stopped"
        sys.stderr.write(f"interrupted; {what}; what was recorded stays\n")
        return 130
    except SystemExit as stop:  # Hydra's own: 0 after --help, 1 after it reported an error
        return 0 if not stop.code else 1 if sweep.cells_seen else 2


if __name__ == "__main__":
    sys.exit(main())
