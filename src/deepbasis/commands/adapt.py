# SPDX-License-Identifier: Apache-2.0
"""`deepbasis adapt`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from deepbasis.options import options
from deepbasis.train.config import Data, TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from deepbasis.data.sample import Frames
    from deepbasis.model import Completer

# With fewer frames nothing can be said about how scenes differ.
FEWEST = 8
# Points at which the model is measured before and after.
MEASURED = ("0", "5", "50", "500")
Figures = dict[str, dict[str, float]]


@options
@dataclass(frozen=True)
class Adapt:
    """Adapt a model to your camera with a few dozen frames with depth, dense or sparse.

    Prior, calibration and, with 36 frames or more, the kernel of correlated errors are learned
    again; the network is not trained.
    """

    model: Positional[str]
    """Name of a pretrained model, a model file, or a training folder."""
    data: Data = "folder"
    """Data set. A folder holds rgb/ and depth/; rooms and roads are rendered."""
    root: Path | None = None
    """Folder of the data set, or NYU's .mat file."""
    frames: int | None = None
    """Use only this many frames; for rooms and roads, render this many (default 100)."""
    size: tuple[int, int] | None = None
    """Height and width of rendered frames."""
    downscale: int = 1
    """Reduce height and width by this factor, a power of 2; nyu starts at 224 x 304, the others at
    full size."""
    val_frames: int | None = None
    """Number of validation frames, the last ones of all. They are not learned from, but used to
    measure the result (default: a quarter of the frames)."""
    points: str | None = None
    """Points of each frame to learn from: 2000, 5%, ..., or sensor (default: those that the model
    was trained with)."""
    familiarity_only: bool = False
    """Learn only which images are familiar to the model, from the frames that it was trained on;
    everything else stays the same."""
    out: Path = Path("adapted.safetensors")
    """Model file to write. With 9 validation frames or more, a conformal table for `deepbasis
    complete --calibration` is written beside it, as .json."""

    def run(self) -> None:
        """Adapt, show errors and coverage before and after, and write the model."""
        from deepbasis.data.files import find_folder
        from deepbasis.data.sources import CachedFrames, Source, split_validation
        from deepbasis.model import load

        if self.out.suffix.lower() != ".safetensors":
            raise ValueError(f"--out {self.out} does not end in .safetensors")
        find_folder(self.out.parent, "create it first")
        model = load(self.model)
        source = Source(self.data, self.root, self.frames, self.size, self.downscale)
        everything = source.open("train")
        count = self._count(everything)
        frames, val_frames = split_validation(CachedFrames(everything), count)
        try:
            from lightning_fabric import Fabric
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'adapting needs {error.name}: pip install "deepbasis[train]"'
            ) from error
        import torch

        fabric = Fabric(accelerator="cuda" if torch.cuda.is_available() else "cpu", devices=1)
        model.to(fabric.device)
        if self.familiarity_only:
            self._learn_familiarity(fabric, model, frames, val_frames)
        else:
            self._learn(fabric, model, frames, val_frames)

    def _learn(
        self, fabric: "Fabric", model: "Completer", frames: "Frames", val_frames: "Frames"
    ) -> None:
        from deepbasis.calibrate.adapt import adapt
        from deepbasis.calibrate.familiarity import learn_familiarity
        from deepbasis.calibrate.measure import measure
        from deepbasis.data.sources import fingerprint

        network, count = model.network, len(val_frames)
        points = self.points or model.card.training.get("fit_points", TrainConfig().fit_points)
        before = measure(fabric, network, val_frames, MEASURED, unmeasured_only=True)
        found = adapt(network, frames, fabric, points)
        found["familiarity"] = learn_familiarity(fabric, network, frames, val_frames)
        after = measure(fabric, network, val_frames, MEASURED, unmeasured_only=True)
        split = {"adapted": fingerprint(frames), "adapted_validation": fingerprint(val_frames)}
        found |= {"frames": len(frames), "before": before, "after": after}
        metrics = model.card.metrics | {"adapted": found}
        model.card = replace(model.card, split=model.card.split | split, metrics=metrics)
        model.save(self.out)
        print(f"learned from     {len(frames)} frames; the network is unchanged")
        if count:
            print(f"on {count} validation frames, before and after:")
            print(table(before, after))
        print(f"model            {self.out}")
        print(f"conformal table  {self._write_conformal(fabric, model, val_frames)}")

    def _write_conformal(self, fabric: "Fabric", model: "Completer", frames: "Frames") -> str:
        """Write the table if there are enough frames; says what was done."""
        from deepbasis.calibrate.adapt import learn_conformal
        from deepbasis.conformal import FEWEST_GROUPS

        if len(frames) < FEWEST_GROUPS:
            return (
                f"not written: it needs {FEWEST_GROUPS} validation frames, and there are "
                f"{len(frames)}"
            )
        drawn = MEASURED[1:] if self.points is None else (self.points.rpartition("-")[2],)
        file = self.out.with_suffix(".json")
        learn_conformal(model.network, frames, fabric, drawn).save(file)
        return f"{file}, for `deepbasis complete --calibration`"

    def _learn_familiarity(
        self, fabric: "Fabric", model: "Completer", frames: "Frames", val_frames: "Frames"
    ) -> None:
        from deepbasis.calibrate.familiarity import FEWEST_FRAMES, learn_familiarity

        found = learn_familiarity(fabric, model.network, frames, val_frames)
        if not found:
            raise ValueError(
                f"{len(frames)} frames and {len(val_frames)} validation frames are too few for "
                f"--familiarity-only; at least {FEWEST_FRAMES} and 1 are needed"
            )
        model.card = replace(model.card, metrics=model.card.metrics | {"familiarity": found})
        model.save(self.out)
        print(f"learned from     {found['frames']} frames")
        print(f"model            {self.out}")

    def _count(self, frames: "Frames") -> int:
        count = len(frames) // 4 if self.val_frames is None else self.val_frames
        if len(frames) - count < FEWEST:
            raise ValueError(
                f"there are {len(frames) - count} frames to learn from, besides {count} for "
                f"validation (--val-frames); at least {FEWEST} are needed, better 30 or more"
            )
        return count


def table(before: Figures, after: Figures) -> str:
    """Figures before and after, side by side."""
    titles = {"mae": "MAE (m)", "rmse": "RMSE (m)", "nees": "NEES", "coverage_90": "90 % coverage"}
    lines = [f"{'':<8}" + "".join(f"{title:>18}" for title in titles.values())]
    lines.append(f"{'points':<8}" + f"{'before':>9}{'after':>9}" * len(titles))
    for points, row in before.items():
        cells = [f"{row[name]:9.3f}{after[points][name]:9.3f}" for name in titles]
        lines.append(f"{points:<8}" + "".join(cells))
    return "\n".join(lines)
