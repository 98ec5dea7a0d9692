# SPDX-License-Identifier: Apache-2.0
"""Tables of pixels and point clouds: what is written is read back, what is wrong is refused."""

import struct

import numpy as np
import pytest
import trimesh
from hypothesis import example, given
from hypothesis import strategies as st

from deepbasis.data.clouds import read_cloud, read_points, write_ply

XYZ = np.array([[1.5, -2.25, 3.1], [0.1, 0.2, 0.3]])
PCD = """# .PCD v0.7 - Point Cloud Data file format
VERSION 0.7
FIELDS x y _ z rgb
SIZE 4 4 1 4 4
TYPE F F U F F
COUNT 1 1 4 1 1
WIDTH 2
HEIGHT 1
VIEWPOINT 0 0 0 1 0 0 0
POINTS 2
DATA """


def refused(message):
    return pytest.raises(ValueError, match=message)


# Tables


@pytest.mark.parametrize(
    "text",
    [
        "3 5 1.5\n4 6 2.25\n",
        "3,5,1.5\r\n4, 6 ,2.25",
        "u,v,depth\n3,5,1.5\n4,6,2.25",
        "# from the robot\n\nu v depth # metres\n 3\t5  1.5 # first\n4 6 2.25\n\n",
        "\ufeffu;v;depth\n3;5;1.5\n4;6;2.25\n",
    ],
)
def test_three_columns_in_every_dress(tmp_path, text):
    (tmp_path / "p.csv").write_text(text, encoding="utf-8")
    assert read_points(str(tmp_path / "p.csv")).tolist() == [[3, 5, 1.5], [4, 6, 2.25]]


def test_a_fourth_column_is_sigma(tmp_path):
    (tmp_path / "p.txt").write_text("3 5 1.5 0.01\n4 6 nan 1e-2\n")
    points = read_points(tmp_path / "p.txt")
    np.testing.assert_array_equal(points, [[3, 5, 1.5, 0.01], [4, 6, np.nan, 0.01]])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2 3\n1 2\n", r"p\.csv, line 2: '1 2' is not 3 numbers"),
        ("u v depth\n# hm\n1 2 x\n", r"p\.csv, line 3: '1 2 x' is not 3 numbers"),
        ("1 2 3\n1 2 3 4\n", r"line 2: '1 2 3 4' is not 3 numbers.*the same in the whole file"),
        ("1,2,3,4\n1,2,3\n", r"line 2: '1,2,3' is not 4 numbers"),
        ("1,2\n", r"line 1: '1,2' is not 3 numbers"),
        ("1 2 3 4 5\n", r"line 1: '1 2 3 4 5' is not 3 numbers"),
        ("1,,3\n", r"line 1: '1,,3' is not 3 numbers"),
        ("u v depth\nu v depth\n", r"line 2: 'u v depth' is not 3 numbers"),
        ("# nothing\n", r"p\.csv contains no points"),
        ("41;160;1,512\n", r"line 1: '41;160;1,512' has more .* separator; if .* decimal com"),
        ("1 2 3\n41 160 1,512\n", r"line 2: '41 160 1,512' has more than one kind of separator"),
        ("x y z\n1 2 3\n", r"has columns x, y and z; if these are points in space, save"),
        ("row,x,depth\n1,2,3\n", r"has the row first, by its header.*swap the first two"),
        ("id,x,y,depth\n9,1,2,3\n", r"p\.csv does not say which columns are u, v and depth"),
        ("left right far\n1 2 3\n", r"by its header 'left right far'; call them u, v, depth and"),
        ("x,y,depth,id\n1,2,3,9\n", r"does not say which columns are u, v and depth"),
        ("u,v,range\n1,2,3\n", r"p\.csv has a column `range`, .* but z-depth is needed; convert"),
        ("id,u,v,depth\n1,2,3\n", r"line 2: '1,2,3' has 3 columns, but the header .* has 4"),
        ("id,u,v,depth\n1,2,3,far\n", r"line 2: '1,2,3,far' is not 3 numbers"),
    ],
)
def test_a_malformed_table_is_named_by_line(tmp_path, text, said):
    (tmp_path / "p.csv").write_text(text)
    with refused(said):
        read_points(tmp_path / "p.csv")


@pytest.mark.parametrize(
    "text",
    ["depth,u,v\n3,1,2\n", "id,u,v,depth\nfirst,1,2,3\n", "Row;Col;Metres\n2;1;3\n", "1 2 3\n",
     "column row range metres\n1 2 3.5 3\n", "x y depth\n1 2 3\n", "Col px m\n1 2 3\n"],
)  # fmt: skip
def test_a_header_tells_the_columns(tmp_path, text):
    (tmp_path / "p.csv").write_text(text)
    assert read_points(tmp_path / "p.csv").tolist() == [[1, 2, 3]]


def test_sigma_is_found_by_its_name(tmp_path):
    (tmp_path / "p.csv").write_text("sigma,depth,v,u\n0.1,3,2,1\n")
    assert read_points(tmp_path / "p.csv").tolist() == [[1, 2, 3, 0.1]]


# PLY


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ply_comes_back_to_the_bit(tmp_path, dtype):
    xyz = np.random.default_rng(0).normal(size=(100, 3)).astype(dtype)
    rgb = np.arange(300, dtype=np.uint8).reshape(100, 3)
    path = tmp_path / "c.ply"
    write_ply(path, xyz, rgb, {"std": xyz[:, 0].astype(np.float32)})
    got = read_cloud(str(path))
    assert got.dtype == np.float64
    assert (got == xyz).all()
    content = path.read_bytes()
    size = {np.float64: 8, np.float32: 4}[dtype]
    body = content[content.index(b"end_header\n") + 11 :]
    assert len(body) == 100 * (3 * size + 3 + 4)
    assert body[3 * size : 3 * size + 3] == rgb[0].tobytes()
    assert struct.unpack_from("<f", body, 3 * size + 3)[0] == np.float32(xyz[0, 0])
    assert b"property uchar red" in content
    assert b"property float std" in content


def test_an_independent_reader_agrees(tmp_path):
    write_ply(tmp_path / "c.ply", XYZ.astype(np.float32), np.full((2, 3), 9, np.uint8))
    cloud = trimesh.load(tmp_path / "c.ply")
    np.testing.assert_array_equal(cloud.vertices, XYZ.astype(np.float32))
    assert (cloud.colors[:, :3] == 9).all()


@pytest.mark.parametrize("encoding", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_skips_what_it_does_not_need(tmp_path, encoding):
    """An element before the vertices, other properties between x, y and z, faces after them."""
    header = (
        f"ply\nformat {encoding} 1.0\ncomment end_header soon\nobj_info x\n"
        "element camera 2\nproperty double focal\nproperty uchar id\n"
        "element vertex 2\nproperty uchar red\nproperty float x\nproperty int16 label\n"
        "property double y\nproperty float32 z\n"
        "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    )
    rows = [(255, 1.5, -7, -2.25, 3.0), (0, 0.5, 8, 0.2, 0.25)]
    if encoding == "ascii":
        lines = ["500.0 1", "501.0 2", *(" ".join(map(str, row)) for row in rows), "3 0 1 0"]
        body = "\n".join(lines).encode()
    else:
        order = "<" if "little" in encoding else ">"
        body = b"".join(struct.pack(f"{order}dB", 500 + i, i) for i in range(2))
        body += b"".join(struct.pack(f"{order}Bfhdf", *row) for row in rows)
        body += struct.pack(f"{order}B3i", 3, 0, 1, 0)
    (tmp_path / "c.ply").write_bytes(header.encode() + body)
    assert read_cloud(tmp_path / "c.ply").tolist() == [[1.5, -2.25, 3.0], [0.5, 0.2, 0.25]]


def ply(count=1, properties="xyz", body="1 2 3\n", element="vertex"):
    lines = "".join(f"property float {name}\n" for name in properties)
    return f"ply\nformat ascii 1.0\nelement {element} {count}\n{lines}end_header\n{body}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ply(0, body=""), "it is an empty point cloud; was the sensor running?"),
        (ply(2, body="nan 1 2\n1 inf 2\n"), "empty point cloud: none of its 2 points is finite"),
        (ply(3), "it ends after 1 of 3 points; it is damaged"),
        (ply(properties="xy", body="1 2\n"), "properties are x, y, but not all of x, y and z"),
        (ply(element="face"), "no element `vertex`"),
        (ply(body="1 2\n"), "its line '1 2' has fewer than 3 numbers"),
        (ply(body="1 2 a\n"), "could not convert"),
        (ply(count="many"), "invalid literal"),
        (ply().replace("float x", "list uchar int x"), "'vertex' holds lists"),
        (ply().replace("float y", "quad y"), "'property quad y' is not valid"),
        (ply().replace("ply", "plx", 1), "like a PLY file"),
        (ply().replace("ascii", "morse"), "like a PLY file"),
        (ply().replace("end_header", "end"), "the header has no line 'end_header'"),
        ("", "the header has no line 'end_header'"),
        ("ply\nend_header\n", "like a PLY file|it is damaged"),
        (ply().replace("element vertex 1", "element vertex"), r"has another format \(list index"),
        (ply(body="4000 0 3000\n"), "exceed 5000 m, which looks like millimetres"),
    ],
)
def test_a_wrong_ply_is_refused(tmp_path, text, said):
    (tmp_path / "c.ply").write_text(text)
    with refused(rf"(?s)c\.ply.*{said.replace('?', '[?]')}"):
        read_cloud(tmp_path / "c.ply")


def test_a_scale_counts_before_the_unit_is_checked(tmp_path):
    (tmp_path / "c.ply").write_text(ply(body="4000 0 3000\n"))
    assert read_cloud(tmp_path / "c.ply", 1000).tolist() == [[4, 0, 3]]
    assert read_cloud(tmp_path / "c.ply", is_map=True).tolist() == [[4000, 0, 3000]]


def test_a_truncated_binary_ply_is_refused(tmp_path):
    write_ply(tmp_path / "c.ply", XYZ)
    content = (tmp_path / "c.ply").read_bytes()
    (tmp_path / "c.ply").write_bytes(content[:-1])
    with refused(r"c\.ply cannot be read as a point cloud: it ends after 1 of 2 points"):
        read_cloud(tmp_path / "c.ply")


def test_an_empty_cloud_is_not_written(tmp_path):
    with refused(r"c\.ply would be an empty point cloud"):
        write_ply(tmp_path / "c.ply", np.zeros((0, 3)))
    assert not list(tmp_path.iterdir())


# PCD


def test_pcd_as_text(tmp_path):
    (tmp_path / "c.pcd").write_text(f"{PCD}ascii\n1.5 2 0 0 0 0 3 9\nnan nan 0 0 0 0 nan 9\n")
    assert read_cloud(tmp_path / "c.pcd").tolist() == [[1.5, 2, 3]]


def test_pcd_as_binary_with_padding_and_a_lost_point(tmp_path):
    rows = [(1.5, 2, b"pad!", 3, 9), (np.nan, 1, b"pad!", 1, 9)]
    body = b"".join(struct.pack("<ff4sff", *row) for row in rows)
    (tmp_path / "c.pcd").write_bytes(f"{PCD}binary\n".encode() + body)
    assert read_cloud(tmp_path / "c.pcd").tolist() == [[1.5, 2, 3]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{PCD}binary_compressed\n", "'binary_compressed'; convert it with `pcl_convert_pcd_asc"),
        (f"{PCD}ascii\n1 2 0 0 0 0 3 9\n", "it ends after 1 of 2 points"),
        (PCD.replace("POINTS 2", "POINTS 0") + "ascii\n", "it is an empty point cloud"),
        (PCD.replace("SIZE 4 4 1 4 4\n", "") + "ascii\n", "the PCD header has no line SIZE"),
        (PCD.replace("SIZE 4 4", "SIZE 3 4") + "binary\n" + 50 * " ", "f3"),
        (PCD.replace("SIZE 4 4", "SIZE 4") + "ascii\n", "zip"),
        (PCD, "header has no line 'DATA'"),
    ],
)
def test_a_wrong_pcd_is_refused(tmp_path, text, said):
    (tmp_path / "c.pcd").write_text(text.removesuffix("DATA ") if said.endswith("'DATA'") else text)
    with refused(rf"c\.pcd cannot be read as a point cloud: .*{said}"):
        read_cloud(tmp_path / "c.pcd")


@given(st.binary(max_size=200), st.sampled_from(["ply", "pcd"]))
@example(b"ply\n\nend_header\n", "ply")
@example(b"DATA", "pcd")
@example(b"end_header", "ply")
def test_any_bytes_give_a_sentence_with_the_files_name(tmp_path_factory, content, kind):
    path = tmp_path_factory.mktemp("cloud") / f"c.{kind}"
    path.write_bytes(content)
    with refused(rf"c\.{kind} cannot be read as a point cloud: "):
        read_cloud(path)


@pytest.mark.parametrize("encoding", ["ascii", "binary_little_endian"])
@given(at=st.integers(0, 130), byte=st.integers(0, 255))
def test_one_wrong_byte_gives_points_or_a_sentence(tmp_path_factory, encoding, at, byte):
    content = bytearray(ply(2, body="1 2 3\n4 5 6\n7 8 9 10 11 12").encode())
    content = content.replace(b"ascii", encoding.encode())
    content[at % len(content)] = byte
    path = tmp_path_factory.mktemp("cloud") / "c.ply"
    path.write_bytes(content)
    said = "c.ply"
    try:
        read_cloud(path)
    except ValueError as error:
        said = str(error)
    assert "c.ply" in said


def test_another_cloud_format_says_what_to_do(tmp_path):
    with refused(r"c\.obj is not a supported point cloud; convert it to \.ply or \.pcd"):
        read_cloud(tmp_path / "c.obj")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*c\.ply"):
        read_cloud(tmp_path / "c.ply")


# XYZ


@pytest.mark.parametrize(
    "text",
    [
        "1.5 2 3\n4 5 6 255 0 0\n",
        "//X Y Z R G B\n1.5 2 3 0 0 0\n4 5 6 0 0 0\n",
        "# x, y, z\n1.5,2,3\n4, 5, 6 # last, first\n",
        "1.5;2;3\n\n4;5;6\n",
    ],
)
def test_xyz_has_any_separator_and_comments(tmp_path, text):
    (tmp_path / "c.xyz").write_text(text)
    assert read_cloud(tmp_path / "c.xyz").tolist() == [[1.5, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("line", ["1,5 2,0 3,0", "1,5;2,0;3,0"])
def test_decimal_commas_in_xyz_are_refused(tmp_path, line):
    (tmp_path / "c.xyz").write_text(f"{line}\n")
    with refused(f"its line '{line}' has more than one kind of separator; if there are decimal"):
        read_cloud(tmp_path / "c.xyz")


# BIN


def test_a_bin_is_four_floats_a_point(tmp_path):
    points = np.array([[1.5, -2.25, 3.0, 0.7], [np.nan, 0, 0, 0], [4, 5, 6, 0]], "<f4")
    points.tofile(tmp_path / "c.bin")
    assert read_cloud(tmp_path / "c.bin").tolist() == [[1.5, -2.25, 3], [4, 5, 6]]


def test_a_bin_of_nuscenes_is_refused(tmp_path):
    """Four points of five floats are as long as five of four."""
    np.ones((4, 5), "<f4").tofile(tmp_path / "c.pcd.bin")
    with refused(r"c\.pcd\.bin cannot be read .*: files of nuScenes have five numbers for each"):
        read_cloud(tmp_path / "c.pcd.bin")


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (
            17,
            r"c\.bin cannot be read as a point cloud: its 17 bytes are not x, y, z and reflectance",
        ),
        (0, "an empty point cloud"),
    ],
)
def test_a_bin_of_another_size_is_refused(tmp_path, size, said):
    (tmp_path / "c.bin").write_bytes(bytes(size))
    with refused(said):
        read_cloud(tmp_path / "c.bin")
