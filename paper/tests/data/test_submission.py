# SPDX-License-Identifier: Apache-2.0
"""The file for KITTI's benchmark: what we write is right, and what is broken is found."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from PIL import Image

from deepbasis_paper.data.submission import check_submission, write_submission

SIZE = (4, 6)
NAMES = [f"000000000{k}.png" for k in range(3)]


def make_depths(count, value=1.5):
    return (np.full(SIZE, value + k, np.float32) for k in range(count))


def test_a_submission_holds_numbered_pictures_at_its_root(tmp_path):
    write_submission(tmp_path / "s.zip", make_depths(3), 3, SIZE)
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        assert archive.namelist() == ["0000000000.png", "0000000001.png", "0000000002.png"]
        for k, name in enumerate(archive.namelist()):
            picture = np.asarray(Image.open(io.BytesIO(archive.read(name))))
            assert picture.dtype == np.uint16
            assert (picture == 256 * (1.5 + k)).all()


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_submission_of_another_count_is_refused_and_not_written(tmp_path, count):
    with pytest.raises(ValueError, match=rf"would hold {count} depth maps; a submission holds 3"):
        write_submission(tmp_path / "s.zip", make_depths(count), 3, SIZE)
    assert not list(tmp_path.iterdir())


def test_the_server_wants_1000(tmp_path):
    with pytest.raises(ValueError, match="would hold 1 depth maps; a submission holds 1000"):
        write_submission(tmp_path / "s.zip", make_depths(1), size=SIZE)


@pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf])
def test_a_prediction_must_be_a_depth(tmp_path, bad):
    depth = np.ones(SIZE, np.float32)
    depth[2, 3] = bad
    with pytest.raises(
        ValueError,
        match=r"0000000000\.png of the submission is .* at row 2, column 3, and wrong at 1 pixels",
    ):
        write_submission(tmp_path / "s.zip", [depth], 1, SIZE)
    assert not list(tmp_path.iterdir())


def test_a_prediction_beyond_16_bits_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0000000000\.png: the largest depth is 300 m"):
        write_submission(tmp_path / "s.zip", make_depths(1, 300), 1, SIZE)


def test_a_tiny_prediction_is_not_written_as_none(tmp_path):
    write_submission(tmp_path / "s.zip", make_depths(1, 1e-5), 1, SIZE)
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        picture = np.asarray(Image.open(io.BytesIO(archive.read("0000000000.png"))))
    assert (picture == 1).all()


def test_a_prediction_of_another_size_is_refused_at_once(tmp_path):
    with pytest.raises(
        ValueError, match=r"0000000000\.png of the submission is \[4, 6\] pixels .* \[352, 1216\]"
    ):
        write_submission(tmp_path / "s.zip", make_depths(1))
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_checked_before_it_replaces_anything(tmp_path, monkeypatch):
    """An encoder that goes wrong must not cost the file of before."""
    path = tmp_path / "s.zip"
    write_submission(path, make_depths(3), 3, SIZE)
    before = path.read_bytes()
    monkeypatch.setattr(
        "deepbasis_paper.data.submission.encode_depth", lambda *_: png(np.zeros(SIZE, np.uint16))
    )
    with pytest.raises(ValueError, match=r"0000000000\.png in .* has no depth at row 0, column 0"):
        write_submission(path, make_depths(3), 3, SIZE)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# Checking


def png(values: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, kind)
    return buffer.getvalue()


def counts(value: int = 300, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.full(size, value, np.uint16)


def gap() -> np.ndarray:
    values = counts()
    values[1, 2] = values[3, 0] = 0
    return values


GOOD = dict.fromkeys(NAMES, png(counts()))


def pack(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_a_good_file_made_by_another_hand_passes(tmp_path):
    """In any order, compressed, and with all that 16 bits hold."""
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in zip(reversed(NAMES), (1, 256, 65535), strict=True):
            archive.writestr(name, png(counts(value)))
    check_submission(path, 3, SIZE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({NAMES[1]: png(np.full(SIZE, 9, np.uint8))}, "{1} in {path} is a picture of mode L, not"),
        ({NAMES[1]: png(np.ones((*SIZE, 3), np.uint8))}, "{1} in {path} is a picture of mode RGB"),
        ({NAMES[1]: png(counts(), "TIFF")}, "{1} in {path} cannot be read as a PNG"),
        ({NAMES[1]: b"depth"}, "{1} in {path} cannot be read as a PNG"),
        ({NAMES[1]: GOOD[NAMES[1]][:50]}, "{1} in {path} cannot be read as a PNG"),
        ({NAMES[1]: None}, "{1} is not in {path}; 1 of 3 files are missing"),
        ({NAMES[1]: None, NAMES[2]: None}, "{1} is not in {path}; 2 of 3 files are missing"),
        (
            {NAMES[2]: png(counts(size=(6, 4)))},
            "{2} in {path} is [6, 4] pixels (height, width); the benchmark's frames are [4, 6]",
        ),
        (
            {NAMES[2]: png(gap())},
            "{2} in {path} has no depth at row 1, column 2, and at 2 pixels in all",
        ),
        (
            {NAMES[0]: None, "0.png": GOOD[NAMES[0]]},
            "0.png in {path} does not belong there: a submission holds {0} to {2} and nothing else",
        ),
        ({"0000000003.png": GOOD[NAMES[0]]}, "0000000003.png in {path} does not belong there"),
        ({"notes.txt": b"best run"}, "notes.txt in {path} does not belong there"),
        ({"maps/": b""}, "maps/ in {path} is a folder or lies in one"),
        (
            {NAMES[0]: None, f"maps/{NAMES[0]}": GOOD[NAMES[0]]},
            "maps/{0} in {path} is a folder or lies in one; all files belong at the top level",
        ),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence_that_names_it(tmp_path, changes, said):
    files = {name: content for name, content in (GOOD | changes).items() if content is not None}
    path = pack(tmp_path / "s.zip", files)
    with pytest.raises(ValueError, match=r"s\.zip") as refused:
        check_submission(path, 3, SIZE)
    assert str(refused.value).startswith(said.format(*NAMES, path=path))
    assert "\n" not in str(refused.value)


def test_a_name_twice_is_refused(tmp_path):
    path = pack(tmp_path / "s.zip", GOOD)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(NAMES[2], GOOD[NAMES[2]])
    with pytest.raises(ValueError, match=r"0000000002\.png is in .*s\.zip more than once"):
        check_submission(path, 3, SIZE)


def test_damage_is_found(tmp_path):
    """A bit that fell over inside a picture, a file cut short, a file of another kind."""
    path = pack(tmp_path / "s.zip", GOOD)
    content = bytearray(path.read_bytes())
    at = content.index(NAMES[1].encode()) + len(NAMES[1]) + len(GOOD[NAMES[1]]) - 3
    content[at] ^= 1  # in the last bytes of the PNG, which its reader does not look at
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"0000000001\.png in .*s\.zip cannot be read"):
        check_submission(path, 3, SIZE)
    path.write_bytes(content[:-30])
    with pytest.raises(ValueError, match=r"s\.zip cannot be read as a zip file"):
        check_submission(path, 3, SIZE)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*t\.zip"):
        check_submission(tmp_path / "t.zip")


def test_the_benchmark_wants_1000_of_its_own_size(tmp_path):
    path = pack(tmp_path / "s.zip", GOOD)
    with pytest.raises(ValueError, match=r"0000000003\.png is not in .*; 997 of 1000 files are"):
        check_submission(path)
    large = dict.fromkeys((f"{k:010d}.png" for k in range(1000)), GOOD[NAMES[0]])
    pack(path, large)
    with pytest.raises(ValueError, match=r"is \[4, 6\] pixels .* frames are \[352, 1216\]"):
        check_submission(path)


def test_pictures_that_unpack_to_much_are_refused_before_memory_is_taken(tmp_path):
    """50 MB of zeros in 50 kB."""
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in NAMES:
            archive.writestr(name, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=r"0000000000\.png in .*s\.zip is larger than the 100048"
        ):
            check_submission(path, 3, SIZE)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
