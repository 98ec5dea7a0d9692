# SPDX-License-Identifier: Apache-2.0
"""Damaged and huge files end in one sentence, before memory is taken for what they claim."""

import io
import json
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from deepbasis.data import clouds, folder, formats, images
from deepbasis.data.limits import VARIABLE
from deepbasis.model import load
from deepbasis.nets import MobileNetV2, load_encoder_weights

# What a refusal may take, in bytes.
LITTLE = 20_000_000


def png_of_zeros(path, width, height):
    """A grey PNG whose pixels take a thousandth of their number in bytes."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    packer = zlib.compressobj(9)
    row = bytes(width + 1)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))


def npy_header(shape, kind="<f8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def claims_much(path):
    """A small file that claims to be huge, by the suffix of its name."""
    if path.suffix == ".png":
        png_of_zeros(path, 13_000, 13_000)
    elif path.suffix == ".npy":
        path.write_bytes(npy_header((10**6, 10**6)) + bytes(100))
    elif path.suffix == ".npz":
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("depth.npy", "w", force_zip64=True) as file,
        ):
            file.write(npy_header((120_000, 1_000), "|u1"))
            for _ in range(120):
                file.write(bytes(10**6))
    elif path.suffix == ".pcd":
        path.write_text(
            "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 2000000000 1 1\nPOINTS 1\nDATA binary\n"
        )
    elif path.suffix == ".ply":
        lines = "".join(f"property float {axis}\n" for axis in "xyz")
        start = "ply\nformat binary_little_endian 1.0\nelement vertex 2000000000\n"
        path.write_text(f"{start}{lines}end_header\n")
    elif path.suffix == ".xyz":
        with path.open("wb") as file:
            file.truncate(120 * 10**6)  # zeros that take no space, without a line break
    else:
        path.write_bytes(b"Pf\n2000000 2000000\n-1.0\n" + bytes(100))


READERS = {
    "a.png": images.read_image,
    "d.png": lambda path: formats.read_depth(path, 1000),
    "a.npy": formats.read_depth,
    "a.npz": formats.read_depth,
    "a.pcd": clouds.read_cloud,
    "a.ply": clouds.read_cloud,
    "a.xyz": clouds.read_cloud,
    "a.pfm": formats.read_depth,
}


@pytest.mark.parametrize("name", READERS)
def test_a_small_file_that_claims_much_is_refused_before_memory_is_taken(tmp_path, name):
    path = tmp_path / name
    claims_much(path)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=name.replace(".", r"\.")) as refused:
            READERS[name](path)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300 + len(str(path))


def test_a_huge_picture_is_refused_within_little_memory(tmp_path):
    """Pillow's memory is not Python's, so the system limits it here: 169 MB do not fit."""
    png_of_zeros(tmp_path / "a.png", 13_000, 13_000)
    program = (
        "import resource, sys, pathlib; from deepbasis.data.images import read_image\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 60_000_000,) * 2)\n"
        "try: read_image(pathlib.Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "a.png")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "holds 169 million pixels, more than the limit of 100 million; set DEEP" in done.stdout


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_picture_that_claims_more_than_its_file_can_hold_is_refused(tmp_path, suffix):
    """Pillow takes memory for all of the pixels, and makes up those that a JPEG lacks."""
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.zeros((24, 32, 3), np.uint8)).save(path)
    content = bytearray(path.read_bytes())
    if suffix == "png":
        content[16:24] = struct.pack(">II", 9000, 9000)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    else:
        at = content.index(b"\xff\xc0") + 5
        content[at : at + 4] = struct.pack(">HH", 9000, 9000)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"it claims 9000 x 9000 pixels .*: it is damaged"):
        images.read_image(path)


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "I;16"])
def test_a_picture_that_compresses_well_is_read(tmp_path, mode):
    Image.new(mode, (4000, 3000)).save(tmp_path / "a.png", optimize=True)
    assert images.read_image(tmp_path / "a.png").shape == (3000, 4000, 3)
    if mode != "I;16":
        flat = Image.new(mode, (4000, 3000))
        flat.save(tmp_path / "a.jpg", quality=1, optimize=True, progressive=True)
        assert images.read_image(tmp_path / "a.jpg").shape == (3000, 4000, 3)


def test_the_limit_can_be_moved(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.ones((30, 50)))
    monkeypatch.setenv(VARIABLE, "0.001")
    with pytest.raises(ValueError, match=r"0\.0015 million numbers, more than the limit of 0\.001"):
        formats.read_depth(tmp_path / "a.npy")
    png_of_zeros(tmp_path / "a.png", 40, 40)
    with pytest.raises(ValueError, match=r"0\.0016 million pixels"):
        images.read_image(tmp_path / "a.png")
    monkeypatch.setenv(VARIABLE, "0.002")
    assert formats.read_depth(tmp_path / "a.npy").shape == (30, 50)
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ValueError, match="DEEPBASIS_MAX_MILLIONS is 'much', not a number"):
        formats.read_depth(tmp_path / "a.npy")


def test_pillows_own_limit_does_not_count(tmp_path, monkeypatch):
    """It would warn or refuse without a word about our variable."""
    png_of_zeros(tmp_path / "a.png", 40, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert images.read_image(tmp_path / "a.png").shape == (40, 40, 3)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("place", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_damaged_array_is_named(tmp_path, suffix, place):
    path = tmp_path / f"a.{suffix}"
    noise = np.random.default_rng(0).random((40, 50))
    np.save(path, noise) if suffix == "npy" else np.savez_compressed(path, depth=noise)
    content = bytearray(path.read_bytes())
    at = int(place * (len(content) if suffix == "npz" else 100))
    content[at : at + 20] = b"\xff('[{\x00" * 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.{suffix} cannot be read as a numpy file: "):
        formats.read_depth(path)


@pytest.mark.parametrize("read", [folder.read_intrinsics, folder.read_extrinsics])
def test_deep_json_is_refused(tmp_path, read):
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"a\.json does not hold the numbers of a") as refused:
        read(path)
    assert len(str(refused.value)) < 300 + len(str(path))


@pytest.mark.parametrize("text", ["nan 40 20 10", "0 40 20 10", "40 -40 20 10", "inf 40 20 10"])
def test_intrinsics_that_are_not_of_a_camera_are_refused(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=r"a\.txt is not a camera matrix"):
        folder.read_intrinsics(tmp_path / "a.txt")


HEADER = {"format": 3, "architecture": {}, "training": {}, "split": {}, "metrics": {}}


@pytest.mark.parametrize(
    "header",
    [
        [1, 2],
        "text",
        {"format": 3},
        HEADER | {"architecture": [1]},
        HEADER | {"architecture": {"encoder": 5}},
        HEADER | {"architecture": {"embedding": 10**9}},
        HEADER | {"architecture": {"embedding": -1}},
        HEADER | {"architecture": {"colour": "blue"}},
        HEADER | {"training": 7},
        {key: value for key, value in HEADER.items() if key != "metrics"},
        {"format": 2},
        HEADER | {"architecture": {"width": 100_000}},
        HEADER | {"architecture": {"copies": 100_000}},
        {"format": 2, "architecture": {"method": "bdbf"}},
    ],
    ids=str,
)
def test_a_model_with_a_wrong_header_is_refused(tmp_path, header):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"deepbasis": json.dumps(header)})
    with pytest.raises(ValueError, match=r"a\.safetensors (cannot be read as a|is not a model)"):
        load(path)


def test_a_model_of_nan_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.tensor([torch.nan])}, path, {"deepbasis": json.dumps(HEADER)})
    with pytest.raises(ValueError, match=r"a\.safetensors .* its tensor x holds NaN or infinity"):
        load(path)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello", b"\x80\x02}q\x00."])
def test_odd_encoder_files_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.{suffix} (cannot be read as the w|is not a Mobi)"):
        load_encoder_weights(MobileNetV2(), path)


def test_encoder_files_of_other_things_are_refused(tmp_path):
    for odd in ([1, 2], {"a": 3}, {5: torch.zeros(1)}, torch.zeros(3)):
        torch.save(odd, tmp_path / "a.pth")
        with pytest.raises(ValueError, match=r"a\.pth cannot be read as the weights of an enc"):
            load_encoder_weights(MobileNetV2(), tmp_path / "a.pth")
