# SPDX-License-Identifier: Apache-2.0
"""Images in every usual form become the same RGB; what is ambiguous is refused."""

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from deepbasis.data.images import read_image, to_pixels, to_rgb

RGB = np.random.default_rng(0).integers(256, size=(6, 8, 3), dtype=np.uint8)
GREY = RGB[..., 0]
WIDE = RGB.astype(np.uint16) * 257

FORMS = {
    "numpy": RGB,
    "channels first": RGB.transpose(2, 0, 1),
    "torch": torch.from_numpy(RGB),
    "torch, channels first": torch.from_numpy(RGB).permute(2, 0, 1),
    "RGBA": np.dstack([RGB, GREY]),
    "float64": RGB / 255,
    "float32, channels first": (RGB / 255).astype(np.float32).transpose(2, 0, 1),
    "a little beyond 1": RGB / 255 * 1.0004,
    "uint16": WIDE,
    "torch, uint16": torch.from_numpy(WIDE),
    "PIL": Image.fromarray(RGB),
    "PIL, RGBA": Image.fromarray(RGB).convert("RGBA"),
}
GREYS = {
    "numpy": GREY,
    "one channel": GREY[..., None],
    "one channel first": GREY[None],
    "float": GREY / 255,
    "PIL": Image.fromarray(GREY),
    "PIL, floating point": Image.fromarray((GREY / 255).astype(np.float32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_colour_image_is_the_same(form):
    np.testing.assert_array_equal(to_rgb(FORMS[form]), RGB)


@pytest.mark.parametrize("form", GREYS)
def test_every_form_of_a_grey_image_is_the_same(form):
    np.testing.assert_array_equal(to_rgb(GREYS[form]), np.repeat(GREY[..., None], 3, 2))


def test_files_and_their_names_are_images(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "a.png")
    for name in (tmp_path / "a.png", str(tmp_path / "a.png")):
        np.testing.assert_array_equal(to_rgb(name), RGB)
    assert to_pixels(RGB).shape == (1, 3, 6, 8)


def test_a_tiny_file_is_not_ambiguous(tmp_path):
    """A file knows where its channels are, an array of 3 x 3 x 3 does not."""
    Image.fromarray(RGB[:3, :3]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), RGB[:3, :3])


def test_half_precision_is_an_image_too():
    for dtype in (torch.bfloat16, torch.float16):
        found = to_rgb(torch.from_numpy(RGB / 255).to(dtype)).astype(int)
        assert np.abs(found - RGB).max() <= 1


def test_grey_of_16_bits_uses_its_range(tmp_path):
    """As thermal cameras write it: all values in a small part of 16 bits."""
    thermal = (29_000 + 2 * np.arange(48 * 64).reshape(48, 64)).astype(np.uint16)
    Image.fromarray(thermal).save(tmp_path / "t.png")
    for image in (tmp_path / "t.png", thermal, thermal[None], Image.open(tmp_path / "t.png")):
        found = to_rgb(image)
        assert (found[..., 0] == found[..., 2]).all()
        assert found.min() == 0
        assert found.max() == 255
        assert (np.diff(found[..., 0].ravel().astype(int)) >= 0).all()
    assert (to_rgb(np.full((4, 5), 7, np.uint16)) == 0).all()  # a constant has no range


def test_depth_in_place_of_the_photo_is_refused(tmp_path):
    """Zeros and a gap above them are what measurements have and dark photos have not."""
    depth = np.linspace(500, 5000, 48 * 64).reshape(48, 64).astype(np.uint16)
    depth[::3] = 0
    Image.fromarray(depth).save(tmp_path / "d.png")
    for image in (depth, tmp_path / "d.png"):
        with pytest.raises(ValueError, match="16-bit grey with 33% zeros, like a depth map"):
            to_rgb(image)
    noise = np.random.default_rng(0).normal(50, 100, (48, 64))
    dark = noise.clip(0).astype(np.uint16)
    assert (dark == 0).mean() > 0.2
    assert to_rgb(dark).max() == 255
    hot = np.where(depth == depth[1, 0], 0, 30_000 + depth)  # a few dead pixels
    hot[::3] = 30_000
    assert to_rgb(hot.astype(np.uint16)).max() == 255


def test_a_rotation_tag_is_doubted(tmp_path):
    """Other programs turn such an image, so the pixels of its points may be those of another."""
    picture, tags = Image.new("RGB", (40, 30)), Image.Exif()
    picture.save(tmp_path / "plain.jpg")
    assert to_rgb(tmp_path / "plain.jpg").shape == (30, 40, 3)
    tags[ExifTags.Base.Orientation] = 6
    picture.save(tmp_path / "turned.jpg", exif=tags)
    with pytest.warns(UserWarning, match=r"turned\.jpg has a rotation tag .* 30 x 40 pixels"):
        assert to_rgb(tmp_path / "turned.jpg").shape == (30, 40, 3)


@pytest.mark.parametrize("suffix", ["npy", "npz", "pfm", "csv", "txt", "ply", "pcd", "bin", "xyz"])
def test_points_in_place_of_the_photo_are_recognised(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"1 2 3")
    with pytest.raises(
        ValueError, match=rf"a\.{suffix} is not a picture: \.{suffix} files hold dep"
    ):
        to_rgb(path)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((3, 8, 3), np.uint8), "not clear whether channels come first or last"),
        (np.zeros((6, 8, 2), np.uint8), r"uint8 \[6, 8, 2\]; pass a path"),
        (np.zeros((2, 6, 8, 3), np.uint8), r"\[2, 6, 8, 3\]; pass a path"),
        (np.zeros(5, np.uint8), r"uint8 \[5\]; pass a path"),
        (np.zeros((), np.uint8), r"uint8 \[\]; pass a path"),
        (np.zeros((0, 8, 3), np.uint8), "it has no pixel"),
        (RGB.astype(np.int32), r"int32 \[6, 8, 3\]; pass a path"),
        (RGB.astype(complex), r"complex128 \[6, 8, 3\]; pass a path"),
        (RGB.astype(float), "with values from 0 to 249; floating-point images go from 0 to 1"),
        (np.full((6, 8, 3), np.nan), "holds NaN or infinity"),
        (np.ma.masked_array(RGB, RGB < 9), "a masked array; fill the masked pixels first"),
    ],
)
def test_what_is_not_an_image_is_refused(image, said):
    with pytest.raises(ValueError, match=said):
        to_rgb(image)


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_colours_of_16_bits_that_use_fewer_are_as_bright(bits):
    values = (RGB.astype(np.float64) / 255 * (2**bits - 1)).round().astype(np.uint16)
    values[0, 0] = 2**bits - 1
    bright = to_rgb(values)
    np.testing.assert_array_equal(bright[1:], RGB[1:])
