# SPDX-License-Identifier: Apache-2.0
"""From an engine's address to an executor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from urllib.parse import parse_qsl

from .tasks import EngineError

FORMS = "dask://HOST:PORT, ray://HOST:PORT, ray://local, slurm:PARTITION or local:N"


@contextlib.contextmanager
def engine(address: str) -> Iterator[Executor]:
    """An executor for an address; what it connected to or started is released at the end.

    address: "dask://HOST:PORT" (a scheduler); "ray://HOST:PORT" (a cluster's client server),
    "ray://auto" (the cluster that this machine is part of) or "ray://local" (one for itself);
    "slurm:PARTITION", with options of submitit as in "slurm:PARTITION?timeout_min=30&mem_gb=8";
    "local:N" (N processes of this machine). Raises EngineError.
    """
    kind, _, rest = address.partition(":")
    where = rest.removeprefix("//")
    if kind == "local" and where.isdecimal() and int(where) > 0:
        from .local_processes import LocalProcesses

        with LocalProcesses(int(where)) as processes:
            yield processes
    elif kind == "dask" and where:
        with _dask(where) as executor:
            yield executor
    elif kind == "ray" and where:
        with _ray(address, where) as executor:
            yield executor
    elif kind == "slurm" and where:
        with _slurm(where) as executor:
            yield executor
    else:
        raise EngineError(f"engine {address!r}: expected {FORMS}")


def _missing(package: str, extra: str) -> EngineError:
    return EngineError(
        f"{package} is not installed: pip install 'shardproof[{extra}]', here and on all workers"
    )


@contextlib.contextmanager
def _dask(where: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise _missing("Dask (distributed)", "dask") from None
    try:
        client = Client(f"tcp://{where}", timeout="30s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as e:
        raise EngineError(f"engine dask://{where}: no scheduler answers there: {e}") from e
    try:
        # A task is not known by its content: what is submitted twice runs twice.
        yield client.get_executor(pure=False)
    finally:
        client.close()


@contextlib.contextmanager
def _ray(address: str, where: str) -> Iterator[Executor]:
    try:
        import ray
    except ImportError:
        raise _missing("Ray", "ray") from None
    from .ray_cluster import RayTasks

    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if where == "local":
            # A cluster that this process starts sends no statistics of use.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init("local", include_dashboard=False, **quiet)
        elif where == "auto":
            ray.init("auto", **quiet)
        else:
            ray.init(address)
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise EngineError(f"engine {address}: no cluster answers there: {e}") from e
    try:
        with RayTasks() as executor:
            yield executor
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _slurm(where: str) -> Iterator[Executor]:
    try:
        import submitit
    except ImportError:
        raise _missing("submitit", "slurm") from None
    from .slurm_arrays import SlurmArrays, job_folder

    partition, _, query = where.partition("?")
    options = {
        name: int(text) if text.isdecimal() else text
        for name, text in parse_qsl(query, keep_blank_values=True)
    }
    with job_folder(os.environ.get("SHARDPROOF_JOBS_FOLDER")) as folder:
        try:
            submitter = submitit.AutoExecutor(folder, cluster="slurm")
            # submitit's own limit is 5 minutes.
            submitter.update_parameters(
                **{"slurm_partition": partition, "timeout_min": 60, **options}
            )
        except (RuntimeError, NameError) as e:
            raise EngineError(f"engine slurm:{where}: {e}") from e
        with SlurmArrays(submitter) as executor:
            yield executor


__all__ = ["engine"]
