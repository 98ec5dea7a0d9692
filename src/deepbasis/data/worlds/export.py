# SPDX-License-Identifier: Apache-2.0
"""Write rendered frames to a folder, in the layout of the `Folder` reader."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from deepbasis.data.files import atomic_write, remove_abandoned
from deepbasis.data.formats import write_depth_png
from deepbasis.data.worlds import FRAMES_A_STREET, Worlds
from deepbasis.data.worlds.render import import_embree

# Depth is stored as round(scale x metres) in 16 bits: to 0.2 mm up to 13 m, to 1.25 mm up to 81 m.
DEPTH_SCALE = {"rooms": 5000.0, "roads": 800.0}


def frame_paths(out: Path, index: int) -> tuple[Path, Path, Path]:
    """Camera, depth and image of one frame; the image is written last."""
    name = f"{index:06d}"
    return (
        out / "intrinsics" / f"{name}.txt",
        out / "depth" / f"{name}.png",
        out / "rgb" / f"{name}.jpg",
    )


def write_frame(frames: Worlds, index: int, out: Path) -> None:
    """Render one frame, unless it exists."""
    camera, depth, image = frame_paths(out, index)
    if image.exists():
        return
    made = frames.render(index)
    with atomic_write(camera) as file:
        file.write((" ".join(f"{value:.6g}" for value in made.intrinsics) + "\n").encode())
    write_depth_png(depth, made.depth, DEPTH_SCALE[frames.world])
    with atomic_write(image) as file:
        file.write(made.jpeg)


def write_frames(frames: Worlds, indices: list[int], out: Path) -> None:
    """Render a few frames."""
    for index in indices:
        write_frame(frames, index, out)


def export(frames: Worlds, out: Path, workers: int = 1) -> Iterator[int]:
    """Write all frames that do not exist yet; yields the index of each frame when it exists.

    It can be interrupted and called again: existing frames are kept. A folder with other frames
    (another world, seed, variant or size) is refused.
    """
    import_embree()
    _claim(frames, out)
    remove_abandoned([path for i in range(len(frames)) for path in frame_paths(out, i)])
    missing = [i for i in range(len(frames)) if not frame_paths(out, i)[2].exists()]
    yield from (i for i in range(len(frames)) if frame_paths(out, i)[2].exists())
    if workers <= 1:
        for index in missing:
            write_frame(frames, index, out)
            yield index
        return
    # Frames of one street go to one worker, which builds it once.
    parts = [missing[i : i + FRAMES_A_STREET] for i in range(0, len(missing), FRAMES_A_STREET)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(write_frames, frames, part, out): part for part in parts}
        try:
            for done in as_completed(waiting):
                done.result()
                yield from waiting[done]
        finally:
            pool.shutdown(cancel_futures=True)  # the caller wants no more frames


def _claim(frames: Worlds, out: Path) -> None:
    """Create the folders, with a note of their content."""
    size = frames.size or "default"
    text = f"{frames.world} {frames.variant} seed {frames.seed} size {size}\n"
    note = out / "world.txt"
    if note.exists() and note.read_text() != text:
        raise ValueError(
            f"{out} already holds {note.read_text().strip()!r}, not {text.strip()!r}; "
            "choose another folder"
        )
    for path in frame_paths(out, 0):
        path.parent.mkdir(parents=True, exist_ok=True)
    notes = ((note, text), (out / "scale.txt", f"{DEPTH_SCALE[frames.world]:g}\n"))
    remove_abandoned([path for path, _ in notes])
    for path, content in notes:
        with atomic_write(path) as file:
            file.write(content.encode())
