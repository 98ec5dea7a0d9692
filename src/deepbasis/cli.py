# SPDX-License-Identifier: Apache-2.0
"""The command line. Heavy imports stand inside the commands, so that `--help` answers at once."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

import deepbasis
from deepbasis import methods
from deepbasis.complete.config import Settings
from deepbasis.reproduce.config import Plan, Target
from deepbasis.train.config import TrainConfig, read_preset


def demo(out: Path = Path("demo.png"), seed: int = 0) -> None:
    """Complete the built-in example: a room from 500, 50, 5 and no points.

    Args:
        out: Picture to write (.png, .pdf or .svg).
        seed: Another seed draws other points.
    """
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--out {out} does not end in .png, .pdf or .svg; name a picture file")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    from deepbasis.demo import run

    run(out, seed)


def complete(
    images: tyro.conf.Positional[tuple[Path, ...]],
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes],
) -> None:
    """Complete sparse depth: dense depth with error bars for one image or many.

    For an image NAME it writes NAME-depth and NAME-std as 16-bit .png and as .npy in metres, the
    figure NAME.png, and NAME.json: points used and dropped, noise, outliers, warnings, and the
    scales of the .png files. Frames that are done are skipped.

    Args:
        images: Pictures (.jpg, .png), or folders of them.
        settings: Settings.
    """
    if not images:
        raise ValueError("there is no image to complete; pass pictures or folders of them")
    settings.validate()
    from deepbasis.complete.run import run

    run(images, settings)


def reproduce(
    target: tyro.conf.Positional[Target],
    plan: Annotated[Plan, tyro.conf.OmitArgPrefixes] = Plan(),  # noqa: B008  # it is frozen
) -> None:
    """Run one of the paper's or the documentation's experiments: tables and figures to a folder.

    Models that are missing are trained first. Stop it when you like and call it again: it goes on
    where it was.

    Args:
        target: Which one; docs/reproduction.md tells what each shows.
        plan: Settings.
    """
    if not plan.out.is_dir():
        raise ValueError(f"--out {plan.out} is not a folder; make it first")
    if plan.seeds < 1:
        raise ValueError(f"--seeds {plan.seeds} must be at least 1")
    from deepbasis.reproduce.run import run

    run(target, plan, shlex.join(["deepbasis", *sys.argv[1:]]))


def render(
    world: tyro.conf.Positional[Literal["rooms", "roads"]],
    out: Path,
    count: int = 100,
    seed: int = 0,
    variant: str = "clone",
    size: tuple[int, int] | None = None,
    workers: int = 1,
) -> None:
    """Render frames of a procedural world, with exact depth, into a folder.

    Stop it when you like and call it again: it goes on where it was.

    Args:
        world: rooms (indoor, to 10 m) or roads (driving, to 80 m).
        out: Folder to write rgb/, depth/ and intrinsics/ to.
        count: How many frames the folder should hold in the end.
        seed: Another seed makes another world.
        variant: Of roads: clone, morning, overcast, sunset, fog, rain, 15-deg-left, 15-deg-right,
            30-deg-left or 30-deg-right.
        size: Height and width in pixels; by default 240 320 for rooms and 160 512 for roads.
        workers: Processes to render with.
    """
    if count < 1 or workers < 1:
        raise ValueError(f"--count {count} and --workers {workers} must be at least 1")
    from rich.progress import track

    from deepbasis.data.worlds import Worlds
    from deepbasis.data.worlds.export import export

    frames = Worlds(world, count, seed, variant, size)
    for _ in track(export(frames, out, workers), f"rendering {world}", total=count):
        pass
    print(f"{count} frames of {world} in {out}")


def models(size: tuple[int, int] = (240, 320)) -> None:
    """Show the networks, with parameters and operations for one image, and the methods.

    Args:
        size: Height and width of the image in pixels.
    """
    if min(size) < 1:
        raise ValueError(f"--size {size[0]} {size[1]} is not the size of an image")
    from deepbasis.nets.cost import table

    print(f"{table(size)}\n\n{methods.table()}")


def train(config: TrainConfig) -> None:
    """Train a network, learn its prior and calibrate its variance, into one model file.

    Stop it when you like (Ctrl-C) and call it again with --resume: it goes on where it was.
    """
    config.check()
    try:
        from deepbasis.train.run import train as run
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'training needs {error.name}: pip install "deepbasis[train]"'
        ) from error
    from deepbasis.train.loop import Stopped

    try:
        run(config)
    except Stopped as stopped:
        message, number = stopped.args
        if message:  # the first process speaks for all
            print(f"deepbasis: {message}", file=sys.stderr)
            sys.exit(128 + number)  # as shells report a process that a signal ended


def adapt(
    model: tyro.conf.Positional[str],
    data: Literal["nyu", "vkitti2", "kitti", "folder", "rooms", "roads"] = "folder",
    root: Path | None = None,
    frames: int | None = None,
    size: tuple[int, int] | None = None,
    halvings: int = 0,
    held_back: int | None = None,
    points: str | None = None,
    out: Path = Path("adapted.safetensors"),
) -> None:
    """Bring a model to your camera by a few dozen frames with depth, dense or sparse.

    Prior, calibration, the shape of errors and, from 36 frames on, the kernel of local errors are
    learned anew; the network is not trained.

    Args:
        model: Name of a model, its file, or the folder of its training.
        data: Data set. A folder holds rgb/ and depth/; rooms and roads are rendered.
        root: Folder of the data set, or NYU's .mat file.
        frames: Use only so many frames; of rooms and roads, render so many (100 by default).
        size: Height and width of rendered frames.
        halvings: Halve the frames so many times; nyu starts at 224 x 304, the others at full size.
        held_back: Last frames that only measure what the others bring; by default a quarter.
        points: Points of each frame to learn from, as 2000, 5% or sensor; by default those that
            the model was trained with.
        out: Model file to write.
    """
    from deepbasis.data.sources import Source

    try:
        from deepbasis.adapt import run
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'adapting needs {error.name}: pip install "deepbasis[train]"'
        ) from error
    run(model, Source(data, root, frames, size, halvings), out, held_back, points)


def evaluate(
    models: tyro.conf.Positional[tuple[Path, ...]] = (),
    data: Literal["nyu", "vkitti2", "kitti", "folder", "rooms", "roads"] = "rooms",
    root: Path | None = None,
    frames: int | None = None,
    size: tuple[int, int] | None = None,
    halvings: int = 0,
    variant: str | None = None,
    points: tuple[str, ...] = ("5%", "1%", "500", "50", "10", "1", "0"),
    classical: tuple[str, ...] = (),
    errors: tuple[Literal["independent", "local"], ...] = (),
    variance: tuple[Literal["predictive", "paper"], ...] = (),
    out: Path | None = None,
    seed: int = 0,
    workers: int = 1,
) -> None:
    """Score models, and completers without a network, on a data set's test frames.

    Args:
        models: Names of models that come with the package, files, or folders of trainings.
        data: Data set. rooms and roads are rendered; a folder holds rgb/ and depth/.
        root: Folder of the data set, or NYU's .mat file.
        frames: Use only so many frames; of rooms and roads, render so many (100 by default).
        size: Height and width of rendered frames.
        halvings: Halve the frames so many times; nyu starts at 224 x 304, the others at full size.
        variant: Of roads or of VKITTI2's test: fog, 15-deg-left, ...
        points: Patterns of points, as 500, 5%, lidar64, tof, or sensor for the data set's own.
        classical: Completers without a network: nearest, linear, kriging, colourisation.
        errors: How fits take the errors of pixels: independent, local, or a row for each; by
            default as each model was made to.
        variance: Of fits with independent errors: predictive, paper, or a row for each.
        out: Write OUT.json, OUT.csv and OUT.md.
        seed: Another seed draws other points.
        workers: Processes that prepare frames.
    """
    from deepbasis.data.sources import Source
    from deepbasis.evaluate import run

    source = Source(data, root, frames, size, halvings, variant=variant)
    command = shlex.join(["deepbasis", *sys.argv[1:]])
    run(models, classical, source, points, out, command, errors, variance, seed, workers)


def submit(
    model: tyro.conf.Positional[str | None] = None,
    root: Path | None = None,
    out: Path = Path("submission.zip"),
    check: Path | None = None,
) -> None:
    """Complete KITTI's anonymous test frames into the zip file that its benchmark takes.

    The file is checked, and appears only when it is complete.

    Args:
        model: Model that comes with the package, or a model file, or the folder of a training.
        root: Folder of KITTI depth completion; its depth_selection/ holds the test frames.
        out: Zip file to write.
        check: Write nothing, only check this zip file.
    """
    from deepbasis.submit import check_or_run

    check_or_run(model, root, out, check)


def make_app(arguments: list[str]) -> tyro.extras.SubcommandApp:
    """All commands; the defaults of `train` come from the preset that the arguments name."""
    app = tyro.extras.SubcommandApp()
    for command in (demo, complete, reproduce, render, models, adapt, evaluate, submit):
        app.command(command)
    settings = TrainConfig()
    if arguments[:1] == ["train"] and (name := _find_preset(arguments)) is not None:
        settings = read_preset(name)

    def with_preset(
        config: Annotated[TrainConfig, tyro.conf.OmitArgPrefixes] = settings,
    ) -> None:
        train(config)

    with_preset.__doc__ = train.__doc__
    app.command(name="train")(with_preset)
    return app


def _find_preset(arguments: list[str]) -> str | None:
    for here, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if here == "--preset":
            return after
        if here.startswith("--preset="):
            return here.removeprefix("--preset=")
    return None


def main() -> None:
    """Run a command; what the user did wrong is said in one sentence, with exit code 2."""
    try:
        app = make_app(sys.argv[1:])
        app.cli(prog="deepbasis", description=deepbasis.__doc__)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"deepbasis: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)


def _sentence(error: Exception) -> str:
    """What an error says; one from a data loader's worker hides it below a traceback."""
    text = str(error)
    if "Original Traceback" in text:
        return text.strip().rpartition("\n")[2].partition(": ")[2]
    return text


if __name__ == "__main__":
    main()
