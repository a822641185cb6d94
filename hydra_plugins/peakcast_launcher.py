"""Lets Hydra find Peakcast's launcher: Hydra takes launchers from this namespace only.

The folder has no ``__init__.py``, so that other distributions can add plugins of their own.
"""

from hydra.core.config_store import ConfigStore

from pipeline.launcher import CellLauncher as Launcher


class CellLauncher(Launcher):
    """`pipeline.launcher.CellLauncher`, under the name by which Hydra may instantiate it."""


ConfigStore.instance().store(
    group="hydra/launcher",
    name="peakcast",
    node={"_target_": f"{__name__}.{CellLauncher.__name__}"},
    provider="peakcast",
)
