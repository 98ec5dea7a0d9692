# SPDX-License-Identifier: Apache-2.0
"""Frames of videos: the right ones, in any order, and files that are none."""

import sys
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
import pytest

from deepbasis.data.video import Video, count_frames, open_video


def write_video(path, images, rate=10, times=None, **options):
    """Frames at these times, in units of 1 / rate."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt, stream.bit_rate = "yuv420p", 4_000_000
        for image, time in zip(images, times or range(len(images)), strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = time
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture
def video(tmp_path):
    images = [np.full((48, 64, 3), 20 + 30 * i, np.uint8) for i in range(6)]
    return write_video(tmp_path / "film.mp4", images)


def test_frames_are_counted_and_read_in_any_order(video):
    assert count_frames(video) == 6
    film = Video(video)
    for index in (0, 1, 2, 5, 3, 3, 0):
        image = film.read(index)
        assert image.shape == (48, 64, 3)
        assert abs(float(image.mean()) - (20 + 30 * index)) < 4
    assert open_video(video) is open_video(video)


@pytest.mark.parametrize(("name", "options"), [("a.avi", {}), ("a.mp4", {"movflags": "faststart"})])
def test_a_video_that_is_cut_off_is_doubted(tmp_path, name, options):
    draw = np.random.default_rng(0)
    images = list(draw.integers(256, size=(10, 48, 64, 3), dtype=np.uint8))
    film = write_video(tmp_path / name, images, **options)
    assert count_frames(film) == 10
    film.write_bytes(film.read_bytes()[: film.stat().st_size // 2])
    with pytest.warns(UserWarning, match=r"states that it has 10 frames, but only \d can be read"):
        assert count_frames(film) < 10
    # Of repeated frames, an .avi stores the first only.
    film = write_video(tmp_path / f"repeated-{name}", images[:5], times=[0, 1, 2, 6, 9], **options)
    assert count_frames(film) == 5


def test_each_thread_has_its_own_video(video):
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(open_video, video).result()
        assert pool.submit(open_video, video).result() is theirs
    assert open_video(video) is not theirs


def test_what_is_not_a_video_is_refused_in_one_sentence(tmp_path, video, monkeypatch):
    with pytest.raises(ValueError, match=r"film\.mp4 ends after 6 frames, before frame 9"):
        Video(video).read(9)
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"hello" * 100)
    with pytest.raises(ValueError, match=r"bad.mp4 cannot be read as a video: .*"):
        count_frames(bad)
    with pytest.raises(ValueError, match=r"bad\.mp4 cannot be read as a video"):
        Video(bad).read(0)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        count_frames(tmp_path / "none.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match="video files need PyAV; install it with"):
        count_frames(video)
