# SPDX-License-Identifier: Apache-2.0
"""Each format: what is written is read back, and what is wrong is refused in a sentence."""

import io
import pickle
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from deepbasis.data import formats, images
from deepbasis.data.files import atomic_write, find_folder, list_by_stem

SCALES = [formats.KITTI, formats.MILLIMETRES, formats.TUM, formats.CENTIMETRES]
RAMP = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
finite_depths = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(0, 150, width=32),
)


def refused(message):
    return pytest.raises(ValueError, match=message)


# Images


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPG"])
def test_an_image_comes_back(tmp_path, suffix):
    image = np.full((8, 16, 3), (200, 100, 50), np.uint8)
    image[0, 0] = 201, 101, 51
    path = tmp_path / f"a{suffix}"
    formats.write_image(path, image)
    read = images.read_image(path)
    assert read.dtype == np.uint8
    np.testing.assert_allclose(read, image, atol=0 if suffix == ".png" else 3)


@pytest.mark.parametrize(
    ("mode", "value", "rgb"),
    [
        ("L", 7, (7, 7, 7)),
        ("RGBA", (1, 2, 3, 0), (1, 2, 3)),
        ("LA", (9, 0), (9, 9, 9)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_every_kind_of_image_becomes_rgb(tmp_path, mode, value, rgb):
    Image.new(mode, (4, 2), value).save(tmp_path / "a.png")
    assert (images.read_image(tmp_path / "a.png") == rgb).all()


def test_a_palette_with_transparency_becomes_rgb(tmp_path):
    picture = Image.new("P", (4, 2), 1)
    picture.putpalette([0, 0, 0, 10, 20, 30])
    picture.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    assert (images.read_image(tmp_path / "a.png") == (10, 20, 30)).all()


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("kept", [0, 10, 40, 0.5, 0.9])
def test_a_truncated_image_is_named(tmp_path, suffix, kept):
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    path = tmp_path / f"whole.{suffix}"
    formats.write_image(path, noise)
    content = path.read_bytes()
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(content[: int(kept if kept >= 1 else kept * len(content))])
    with refused(rf"cut\.{suffix} cannot be read as a picture"):
        images.read_image(cut)


def test_a_picture_needs_a_pictures_name(tmp_path):
    with refused(r"a\.gif is not the name of a picture; end it in \.png or \.jpg"):
        formats.write_image(tmp_path / "a.gif", np.zeros((1, 1, 3), np.uint8))


# 16-bit depth


@pytest.mark.parametrize("scale", SCALES)
def test_one_and_a_half_metres_come_back_exactly(tmp_path, scale):
    depth = np.array([[1.5, 0.0]], np.float32)
    formats.write_depth_png(tmp_path / "d.png", depth, scale)
    assert np.asarray(Image.open(tmp_path / "d.png")).tolist() == [[round(1.5 * scale), 0]]
    for read in (formats.read_depth_png, formats.read_depth):
        got = read(tmp_path / "d.png", scale)
        assert got.dtype == np.float32
        assert got.tolist() == [[1.5, 0.0]]


@given(finite_depths, st.sampled_from([256.0, 100.0]))
def test_a_16_bit_depth_is_right_to_half_a_quantum(depth, scale):
    raw = np.asarray(Image.open(io.BytesIO(formats.encode_depth(depth, scale, "d"))))
    assert raw.dtype == np.uint16
    assert ((raw == 0) == (depth == 0)).all()
    exact = depth.astype(np.float64) * scale
    kept = exact >= 0.5
    assert (np.abs(raw[kept] - exact[kept]) <= 0.5).all()
    assert (raw[~kept] <= 1).all()


@pytest.mark.parametrize("scale", SCALES)
def test_every_16_bit_depth_survives_being_read_and_written(tmp_path, scale):
    numbers = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    numbers[-1, -1] = 0  # 65535 is no measurement
    Image.fromarray(numbers).save(tmp_path / "a.png")
    depth = formats.read_depth_png(tmp_path / "a.png", scale)
    formats.write_depth_png(tmp_path / "b.png", depth, scale)
    assert (np.asarray(Image.open(tmp_path / "b.png")) == numbers).all()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
def test_saturated_16_bit_numbers_are_no_measurement(tmp_path, suffix):
    path, numbers = tmp_path / f"d{suffix}", np.array([[65535, 65534, 1500, 0]], np.uint16)
    np.save(path, numbers) if suffix == ".npy" else Image.fromarray(numbers).save(path)
    expected = pytest.approx(np.array([[0, 65.534, 1.5, 0]]))
    assert formats.read_depth(str(path), 1000) == expected
    with refused(r"read as millimetres .* from 1\.5 to 65\.5 m"):
        formats.read_depth(path)
    if suffix == ".png":
        assert formats.read_depth_png(path, 1000) == expected
    np.save(tmp_path / "wide.npy", numbers.astype(np.uint32))
    assert formats.read_depth(tmp_path / "wide.npy", 1000).max() == np.float32(65.535)
    np.save(tmp_path / "metres.npy", np.array([[65535, 1, 1]], np.float32))
    assert formats.read_depth(tmp_path / "metres.npy").max() == 65535


def test_gaps_are_written_as_0_and_a_tiny_depth_is_not_a_gap(tmp_path):
    depth = np.array([[np.nan, np.inf, -np.inf, 0, 1e-6, 1]], np.float32)
    formats.write_depth_png(tmp_path / "d.png", depth, 256.0)
    assert formats.read_counts(tmp_path / "d.png").tolist() == [[0, 0, 0, 0, 1, 256]]


def test_a_depth_beyond_16_bits_is_refused_and_nothing_is_left(tmp_path):
    for largest, ok in ((255.99, True), (256.0, False)):
        path = tmp_path / f"{largest}.png"
        if ok:
            formats.write_depth_png(path, np.full((1, 1), largest, np.float32), 256.0)
            continue
        with refused(
            r"256\.0\.png: the largest depth is 256 m, but 16 bits at scale 256 hold at most "
            r"255\.996 m; cap the depths or use a smaller scale"
        ):
            formats.write_depth_png(path, np.full((1, 1), largest, np.float32), 256.0)
    assert [p.name for p in tmp_path.iterdir()] == ["255.99.png"]


def test_negative_depth_is_refused_on_both_ways(tmp_path):
    negative = np.array([[-2.0, 1.0]], np.float32)
    with refused(r"d\.png holds negative depths, down to -2"):
        formats.write_depth_png(tmp_path / "d.png", negative, 1000.0)
    np.save(tmp_path / "d.npy", negative)
    with refused(r"d\.npy holds negative depths, down to -2"):
        formats.read_depth(tmp_path / "d.npy")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_positive(tmp_path, scale):
    formats.write_depth_png(tmp_path / "d.png", RAMP, 1000.0)
    with refused(r"d\.png: the depth scale is .*needs > 0"):
        formats.read_depth_png(tmp_path / "d.png", scale)


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA"])
def test_an_8_bit_picture_is_no_depth_map(tmp_path, mode):
    Image.new(mode, (4, 3)).save(tmp_path / "d.png")
    with refused(rf"d\.png is an 8-bit image of mode {mode}, not a 16-bit depth map"):
        formats.read_depth(tmp_path / "d.png", 1000.0)


def test_integers_without_a_scale_are_refused_with_the_likely_readings(tmp_path):
    Image.fromarray(np.array([[0, 400, 9800]], np.uint16)).save(tmp_path / "d.png")
    with refused(
        r"d\.png holds integers, and the file does not say their unit: read as millimetres "
        r"\(scale 1000\) its depths run from 0\.4 to 9\.8 m, with KITTI's 256 from 1\.56 to "
        r"38\.3 m; write the right one to a file scale\.txt in the folder above, or pass"
    ):
        formats.read_depth(tmp_path / "d.png", None)
    np.save(tmp_path / "zero.npy", np.zeros((2, 2), np.int64))
    with refused(r"zero\.npy holds integers.*all are 0"):
        formats.read_depth(tmp_path / "zero.npy", None)


# Floating point depth


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pfm", ".tif"])
def test_floats_are_metres_to_the_bit_and_gaps_become_0(tmp_path, suffix):
    depth = RAMP / 7
    depth[0, :3] = np.nan, np.inf, 0
    path = tmp_path / f"d{suffix}"
    {
        ".npy": lambda: formats.write_npy(path, depth),
        ".npz": lambda: np.savez(path, anything=depth),
        ".pfm": lambda: formats.write_pfm(path, depth),
        ".tif": lambda: Image.fromarray(depth).save(path),
    }[suffix]()
    got = formats.read_depth(path)
    assert got.dtype == np.float32
    assert got[0, :3].tolist() == [0, 0, 0]
    assert (got.ravel()[3:] == depth.ravel()[3:]).all()
    assert (formats.read_depth(path, 2.0) == got / 2).all()


def test_an_npz_of_many_arrays_needs_one_named_depth(tmp_path):
    np.savez(tmp_path / "good.npz", depth=RAMP, other=RAMP * 2)
    assert (formats.read_depth(tmp_path / "good.npz") == RAMP).all()
    np.savez(tmp_path / "bad.npz", one=RAMP, two=RAMP)
    with refused(r"bad\.npz holds the arrays one, two; it must hold one, or one called `depth`"):
        formats.read_depth(tmp_path / "bad.npz")


class Harmful:
    def __reduce__(self):
        return pytest.fail, ("a file was unpickled",)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_pickle_is_never_loaded(tmp_path, suffix):
    path = tmp_path / f"d{suffix}"
    path.write_bytes(pickle.dumps(Harmful()))
    with refused(rf"d\{suffix} cannot be read as a numpy file"):
        formats.read_depth(path)
    (np.save if suffix == ".npy" else np.savez)(path, np.array([Harmful()], object))
    with refused(rf"d\{suffix} cannot be read as a numpy file: .*allow_pickle=False"):
        formats.read_depth(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.9])
def test_a_truncated_numpy_file_is_named(tmp_path, suffix, kept):
    path = tmp_path / f"d{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, RAMP)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with refused(rf"d\{suffix} cannot be read as a numpy file"):
        formats.read_depth(path)


@pytest.mark.parametrize(
    ("array", "said"),
    [(RAMP[None], r"float32 \[1, 3, 4\]"), (RAMP > 1, r"bool \[3, 4\]"), (RAMP * 1j, "complex64")],
)
def test_an_array_that_is_no_depth_map_is_refused(tmp_path, array, said):
    np.save(tmp_path / "d.npy", array)
    with refused(rf"d\.npy holds {said}.*a depth map is \[height, width\] numbers"):
        formats.read_depth(tmp_path / "d.npy")


@pytest.mark.parametrize(("sign", "order"), [("-", "<"), ("", ">")])
def test_pfm_by_hand_in_both_byte_orders(tmp_path, sign, order):
    """Three columns, two rows; the file begins with the bottom row."""
    numbers = struct.pack(f"{order}6f", 4, 5, 6, 1, 2, 3)
    (tmp_path / "d.pfm").write_bytes(f"Pf\n3 2\n{sign}1.0\n".encode() + numbers)
    assert formats.read_pfm(tmp_path / "d.pfm").tolist() == [[1, 2, 3], [4, 5, 6]]


@given(finite_depths)
def test_pfm_comes_back_to_the_bit(tmp_path_factory, depth):
    path = tmp_path_factory.mktemp("pfm") / "d.pfm"
    formats.write_pfm(path, depth)
    assert (formats.read_pfm(path) == depth).all()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PF\n1 1\n-1.0\n" + bytes(12), "is a colour portable float map; a depth map is grey"),
        (b"P5\n1 1\n255\n0", "is not a portable float map"),
        (b"", "is not a portable float map"),
        (b"Pf\n2 2\n-1.0\n" + bytes(15), "should hold 2 x 2 numbers, 16 bytes, but holds 15"),
    ],
)
def test_a_wrong_pfm_is_refused(tmp_path, content, said):
    (tmp_path / "d.pfm").write_bytes(content)
    with refused(rf"d\.pfm {said}"):
        formats.read_depth(tmp_path / "d.pfm")


def test_millimetres_taken_for_metres_are_noticed(tmp_path):
    np.save(tmp_path / "d.npy", RAMP * 100)
    with refused(
        r"half of the distances in .*d\.npy exceed 650 m, which looks like millimetres read as "
        r"metres; divided by 1000 \(a depth scale of 1000\) it would be 0\.65 m"
    ):
        formats.read_depth(tmp_path / "d.npy")
    assert formats.read_depth(tmp_path / "d.npy", 1000.0).max() == np.float32(1.2)


def test_a_far_view_and_an_empty_map_are_not_millimetres(tmp_path):
    for name, depth in (("far", np.full((2, 2), 199.0)), ("empty", np.zeros((2, 2)))):
        np.save(tmp_path / f"{name}.npy", depth)
        assert (formats.read_depth(tmp_path / f"{name}.npy") == depth).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [("d.exr", "convert it to .npy or .pfm"), ("d.jpg", ".jpg is not"), ("d", "no suffix")],
)
def test_an_unknown_format_says_what_to_do(tmp_path, name, said):
    with refused(re.escape(said)):
        formats.read_depth(tmp_path / name, 1000.0)


@pytest.mark.parametrize("name", ["d.png", "d.npy", "d.npz", "d.pfm"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"there is no file .*{name}; check its name"):
        formats.read_depth(tmp_path / name, 1000.0)


# Samples and files


def test_a_sample_of_unequal_sizes_is_refused():
    image = np.zeros((4, 6, 3), np.uint8)
    with refused(r"frame 7: image, depth and sparse depth are \[4, 6\], \[3, 4\] and \[4, 6\]"):
        formats.to_sample("frame 7", image, RAMP)


def test_a_sample_without_depth_or_camera():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sample = formats.to_sample("a", image)
    assert (sample.image.permute(1, 2, 0).numpy() == image).all()
    assert sample.depth.shape == sample.sparse.shape == (1, 2, 4)
    assert not sample.depth.any()
    assert not sample.sparse.any()
    assert sample.intrinsics.isnan().all()


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"half of the new", "not bytes"])
    assert path.read_bytes() == b"old"
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_to_a_missing_folder_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; make it first"):
        formats.write_npy(tmp_path / "nowhere" / "a.npy", RAMP)


def test_files_are_listed_in_order_without_hidden_ones(tmp_path):
    for name in ("b.png", "a.PNG", ".c.png", "._a.png", "d.txt"):
        (tmp_path / name).touch()
    assert list(list_by_stem(tmp_path, [".png"])) == ["a", "b"]
    (tmp_path / "b.jpg").touch()
    with refused(r"b\.jpg and b\.png differ only in their suffix, so frame 'b' is not clear"):
        list_by_stem(tmp_path, [".png", ".jpg"])
    with pytest.raises(FileNotFoundError, match=r"holds no file that ends in \.npy"):
        list_by_stem(tmp_path, [".npy"])
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*gone; check its name"):
        find_folder(tmp_path / "gone")


def test_openexr_is_as_its_specification_says(tmp_path):
    """Parsed byte by byte; the reader of the OpenEXR project gave the same once."""
    rng = np.random.default_rng(0)
    maps = {"std": rng.random((5, 7), np.float32), "Z": rng.random((5, 7), np.float32)}
    formats.write_exr(tmp_path / "a.exr", maps)
    content = (tmp_path / "a.exr").read_bytes()
    assert struct.unpack_from("<ii", content) == (20000630, 2)
    place, found = 8, {}
    while content[place]:
        name, kind, rest = content[place:].split(b"\0", 2)
        (size,) = struct.unpack_from("<i", rest)
        found[name.decode()] = (kind.decode(), rest[4 : 4 + size])
        place += len(name) + len(kind) + 2 + 4 + size
    assert found["dataWindow"] == ("box2i", struct.pack("<iiii", 0, 0, 6, 4))
    assert found["compression"] == ("compression", b"\0")
    assert found["channels"][1].startswith(b"Z\0" + struct.pack("<i", 2))
    offsets = struct.unpack_from("<5Q", content, place + 1)
    assert len(content) == offsets[-1] + 8 + 2 * 7 * 4
    for row, offset in enumerate(offsets):
        assert struct.unpack_from("<ii", content, offset) == (row, 2 * 7 * 4)
        line = np.frombuffer(content, "<f4", 14, offset + 8)
        assert (line == np.concatenate([maps["Z"][row], maps["std"][row]])).all()


def test_depths_that_float32_does_not_hold_are_no_measurement(tmp_path):
    path = tmp_path / "depth.npy"
    np.save(path, np.array([[1e300, 1.0], [np.inf, 2.0]]))
    assert formats.read_depth(path).tolist() == [[0, 1], [0, 2]]
    np.save(path, np.array([[1e38, 1.0, 2.0]], np.float32))
    assert formats.read_depth(path, 0.1).tolist() == [[0, 10, 20]]
    for scale in (1e-300, 1e300):
        with pytest.raises(ValueError, match="the depth scale is 1e"):
            formats.read_depth(path, scale)


def test_centimetres_are_not_taken_for_millimetres(tmp_path):
    np.save(tmp_path / "d.npy", np.full((4, 5), 340.0))
    with pytest.raises(ValueError, match=r"looks like centimetres .* divided by 100 .* 3\.4 m"):
        formats.read_depth(tmp_path / "d.npy")
