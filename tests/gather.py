# SPDX-License-Identifier: Apache-2.0
"""Learn a prior with a given network: `gather.py MODEL DEVICES OUT`, run by test_train.py."""

import sys
from pathlib import Path

from deepbasis.calibrate.learn import learn_prior
from deepbasis.data.tensors import save_tensors
from deepbasis.model import Completer
from deepbasis.train.job import make_job
from trainings import small

if __name__ == "__main__":
    out = Path(sys.argv[3])
    job = make_job(small(out, frames=9, devices=int(sys.argv[2])))
    network = Completer.load(Path(sys.argv[1])).network
    learn_prior(job.fabric, network, job.frames, job.config.fit_points)
    if job.fabric.is_global_zero:
        save_tensors(out / "layer.safetensors", network.fit.state_dict(), {})
    job.fabric.barrier()
