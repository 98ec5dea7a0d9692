# SPDX-License-Identifier: Apache-2.0
"""The groups of an archive on the machines of Ray: Ray Data sends them to a pool of workers, starts
workers that ended again, and repeats what they had begun.
"""

import logging
import os
import pickle
import platform
import re
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch

import deepbasis
from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.archive import GroupReport, Task, Workbench
from deepbasis.commands.complete.attempts import Attempts
from deepbasis.commands.complete.plan import digest
from deepbasis.model import find_model

# Bytes that Ray keeps for objects on this machine; here only names of files and reports pass.
STORE = 200 * 2**20
# Bytes that a result is expected to take. With Ray's own estimate, it would wait for more memory.
BLOCK = 2**20
LOCAL = "local"
# Seconds after which nobody listens at an address.
CONNECT = 20.0


def complete_on_ray(tasks: list[Task], settings: Complete) -> Generator[GroupReport]:
    """Complete groups on a cluster, or on this machine; reports come in any order."""
    start(settings)
    try:
        gpus = 0.0 if settings.device == "cpu" else ray.cluster_resources().get("GPU", 0.0)
        cpus = ray.cluster_resources().get("CPU", 1.0)
        workers = settings.workers or int(gpus) or max(1, int(cpus))
        attempts = ray.remote(num_cpus=0)(Attempts).remote()
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.target_max_block_size = BLOCK
        groups = ray.data.from_items(
            [{"task": pickle.dumps(task)} for task in tasks], override_num_blocks=len(tasks)
        )
        results = groups.map_batches(
            Worker,
            batch_size=1,
            fn_constructor_args=(settings, attempts, signature(settings), Path.cwd()),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(tasks))),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        for batch in results.iter_batches(batch_size=1, prefetch_batches=0):
            report = pickle.loads(batch["report"][0])
            if isinstance(report, str):
                raise ValueError(report)
            yield report
    finally:
        ray.shutdown()


def start(settings: Complete) -> None:
    """Start Ray, or join a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else workers wait for everything else
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if settings.ray == LOCAL:
        try:
            ray.init(
                address=LOCAL, num_cpus=settings.workers, object_store_memory=STORE,
                include_dashboard=False, **quiet,
            )  # fmt: skip
        except Exception as error:  # Ray's own are of no other type
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"--ray local: Ray did not start ({reason}); on a busy machine, try again"
            ) from error
        return
    try:
        if found := re.fullmatch(
            r"([^/]+):(\d+)", settings.ray or ""
        ):  # else Ray waits for minutes
            socket.create_connection((found[1], int(found[2])), CONNECT).close()
        ray.init(address=settings.ray, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--ray {settings.ray}: cannot connect to Ray ({reason})") from error


def signature(settings: Complete) -> dict[str, str | None]:
    """What must be the same on all machines, or their results would differ."""
    return {
        "deepbasis": deepbasis.__version__,
        "torch": torch.__version__,
        "the model": digest(find_model(settings.chosen_model)),
    }


class Worker:
    """Completes groups, one at a time, on one core or one GPU."""

    def __init__(
        self, settings: Complete, attempts: Any, expected: dict[str, str | None], folder: Path
    ) -> None:
        torch.set_num_threads(1)  # sums over more threads round otherwise
        if folder.is_dir():
            os.chdir(folder)  # where names of files are those of the user
        self.bench = Workbench(settings, _Remote(attempts))
        found = signature(settings)

        differ = [
            f"{what} {found[what]}, not {expected[what]}"
            for what in found
            if found[what] != expected[what]
        ]
        self.wrong = f"a worker on {platform.node()} has {', '.join(differ)}" if differ else ""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        """Complete a group; a mistake that concerns all groups is returned as a sentence."""
        result: GroupReport | str
        try:
            result = self.wrong or self.bench.complete(pickle.loads(batch["task"][0]))
        except (ValueError, OSError, ModuleNotFoundError) as error:
            result = str(error)
        return {"report": [pickle.dumps(result)]}


class _Remote:
    """Attempts that another process remembers."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: ray.get(getattr(self.actor, name).remote(*arguments))
