# SPDX-License-Identifier: Apache-2.0
"""Work on other machines, by any `concurrent.futures.Executor` (docs/engines.md).

`engine(address)` makes an executor of an address: of Dask, Ray, Slurm, or processes of this
machine. `map_tasks` runs tasks on an executor whose workers may be lost.
"""

from .addresses import engine
from .tasks import EngineError, Lost, Refused, map_tasks

__all__ = ["EngineError", "Lost", "Refused", "engine", "map_tasks"]
