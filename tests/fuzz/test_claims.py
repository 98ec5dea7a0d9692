# SPDX-License-Identifier: Apache-2.0
"""Small files that claim, or unpack to, gigabytes, and files that would open or run others."""

import bz2
import io
import json
import multiprocessing
import os
import pickle
import resource
import struct
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

import deepbasis
from data.fake_bags import START, FakeBag
from deepbasis.data import bags, formats, images, video
from deepbasis.nets import MobileNetV2, load_encoder_weights

# Megabytes that a refusal may take.
LITTLE = 250.0  # the limit of 100 million bytes, of which some libraries make a copy


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _read(reader, path, queue):
    """In a process of its own, whose peak is its own."""
    before = peak()
    try:
        reader(path)
        said = "(an answer)"
    except (ValueError, OSError) as error:
        said = str(error)
    except BaseException as error:
        said = f"(a defect: {type(error).__name__}: {error})"
    queue.put((said, peak() - before))


def refuse(reader, path: Path) -> str:
    """The message of a reader's refusal, which takes little memory."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_read, args=(reader, path, queue))
    process.start()
    process.join()
    assert process.exitcode == 0
    said, taken = queue.get()
    assert not said.startswith("("), said
    assert taken < LITTLE, f"{said}: {taken:.0f} MB"
    return said


def read_bag(path):
    bag = bags.Bag(path, bags.Topics("/c/image"))
    bag.read(bag.names[0])


def write_bag(path: Path) -> bytes:
    bag = FakeBag(path)
    bag.image("/c/image", START, np.zeros((12, 16, 3), np.uint8), "rgb8")
    bag.close()
    written = path if path.is_file() else next(path.glob("*.mcap"))
    return written.read_bytes()


def chunk_of_ros1(content: bytes, megabytes: int) -> tuple[bytes, int]:
    """The same bag with a chunk that unpacks to so many zeros, and how much longer it is."""
    packer = bz2.BZ2Compressor()
    packed = b"".join(packer.compress(bytes(10**6)) for _ in range(megabytes)) + packer.flush()
    # A chunk: length and fields of its header, then length and bytes of its data.
    fields = b"".join(
        struct.pack("<I", len(one)) + one
        for one in (b"compression=bz2", b"op=\x05", b"size=" + struct.pack("<I", 10**6 * megabytes))
    )
    begin = chunk_start(content)
    (header,) = struct.unpack_from("<I", content, begin)
    (data,) = struct.unpack_from("<I", content, begin + 4 + header)
    end = begin + 8 + header + data
    new = struct.pack("<I", len(fields)) + fields + struct.pack("<I", len(packed)) + packed
    return content[:begin] + new + content[end:], len(new) - (end - begin)


def chunk_start(content: bytes) -> int:
    """After the magic line and the record of the bag's header."""
    at = len(b"#ROSBAG V2.0\n")
    (header,) = struct.unpack_from("<I", content, at)
    (data,) = struct.unpack_from("<I", content, at + 4 + header)
    return at + 8 + header + data


def test_a_chunk_of_a_bag_that_unpacks_to_gigabytes(tmp_path):
    path = tmp_path / "a.bag"
    content, moved = chunk_of_ros1(write_bag(path), 400)
    # The index comes after the chunk: its place is in the header of the bag.
    at = content.index(b"index_pos=") + len(b"index_pos=")
    (index,) = struct.unpack_from("<Q", content, at)
    content = content[:at] + struct.pack("<Q", index + moved) + content[at + 8 :]
    path.write_bytes(content)
    assert "unpacks to more than the limit of 100 million bytes" in refuse(read_bag, path)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_a_chunk_of_mcap_that_unpacks_to_gigabytes(name, tmp_path):
    bags._limit_unpacking()
    from rosbags.rosbag2 import storage_mcap

    if name == "zstd":
        packed = storage_mcap.zstd.compress(bytes(200_000_000))
    else:
        import lz4.frame

        packed = lz4.frame.compress(bytes(200_000_000))
    assert len(packed) < 10**6
    unpacker = storage_mcap.DECOMPRESSORS[name]

    def read(_):
        unpacker(packed, 10**9)

    assert "more than the limit of 100 million bytes" in refuse(read, tmp_path)
    small = storage_mcap.zstd.compress(b"abc") if name == "zstd" else lz4.frame.compress(b"abc")
    assert unpacker(small + small, 6) == b"abcabc"
    with pytest.raises(ValueError, match="cut off"):
        unpacker(small[:-3], 3)


def test_bags_with_compressed_chunks_are_still_read(tmp_path):
    from rosbags.rosbag1 import Writer as Writer1

    for kind in Writer1.CompressionFormat:
        path = tmp_path / f"{kind.name}.bag"
        bag = FakeBag.__new__(FakeBag)
        FakeBag.__init__(bag, tmp_path / f"unused-{kind.name}.bag")
        bag.writer.close()
        bag.writer = Writer1(path)
        bag.writer.set_compression(kind)
        bag.writer.open()
        bag.image("/c/image", START, np.full((12, 16, 3), 7, np.uint8), "rgb8")
        bag.close()
        found = bags.Bag(path, bags.Topics("/c/image"))
        assert (found.read(found.names[0]).image == 7).all()


def test_weights_that_unpack_to_gigabytes(tmp_path):
    stored, packed = tmp_path / "a.pth", tmp_path / "b.pth"
    torch.save({"features.0.0.weight": torch.zeros(60_000_000)}, stored)
    with (
        zipfile.ZipFile(stored) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)
    assert packed.stat().st_size < 10**6
    said = refuse(lambda path: load_encoder_weights(MobileNetV2(), path), packed)
    assert "more than it holds" in said


def test_weights_never_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    path = tmp_path / "a.pth"
    torch.save({"features.0.0.weight": Evil()}, path)
    with pytest.raises(ValueError, match="it holds more than tensors"):
        load_encoder_weights(MobileNetV2(), path)
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"a\.pth"):
        load_encoder_weights(MobileNetV2(), path)
    with pytest.raises(ValueError, match=r"a\.safetensors"):
        deepbasis.load(path.rename(tmp_path / "a.safetensors"))
    array = tmp_path / "a.npy"
    np.save(array, np.array([Evil()], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy"):
        formats.read_depth(array)
    assert not (tmp_path / "made").exists()


def test_a_model_of_transformers_never_runs_code(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "modeling_own.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'made')!r})\nclass Own: pass\n"
    )
    own = {"AutoConfig": "modeling_own.Own", "AutoModelForDepthEstimation": "modeling_own.Own"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    with pytest.raises(ValueError, match="cannot be read as a model of transformers"):
        deepbasis.load(tmp_path)
    assert not (tmp_path / "made").exists()


def test_pictures_that_pillow_runs_a_program_for(tmp_path):
    path = tmp_path / "a.png"
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "EPS")
    path.write_bytes(buffer.getvalue())
    with Image.open(path) as picture:
        assert picture.format == "EPS"
    with pytest.raises(ValueError, match=r"a\.png cannot be read as a picture"):
        images.read_image(path)


def test_a_tiff_that_claims_more_than_it_holds(tmp_path):
    path = tmp_path / "a.tif"
    Image.fromarray(np.ones((8, 8), np.float32)).save(path)
    content = bytearray(path.read_bytes())
    for tag in (256, 257, 278):  # width, height, rows of a strip
        place = content.index(struct.pack("<H", tag))
        kind, _ = struct.unpack_from("<HI", content, place + 2)
        struct.pack_into("<H" if kind == 3 else "<I", content, place + 8, 9400)
    path.write_bytes(content)
    said = refuse(formats.read_depth, path)
    assert f"more than {path.stat().st_size} bytes hold" in said


def test_a_video_of_an_unknown_codec(tmp_path):
    """PyAV ends the process by a segmentation fault if it is asked to decode one."""
    path = tmp_path / "film.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuvj420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    path.write_bytes(path.read_bytes().replace(b"MJPG", b"XYZW"))
    assert "its codec is not known" in refuse(video.count_frames, path)
    assert "its codec is not known" in refuse(lambda path: video.Video(path).read(0), path)


def test_a_video_that_names_another_file(tmp_path):
    """FFmpeg's playlists open what they name, wherever it is."""
    with av.open(str(tmp_path / "other.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    path = tmp_path / "list.mp4"
    path.write_text("ffconcat version 1.0\nfile other.mp4\n")
    with av.open(str(path)) as opened:
        assert opened.format.name == "concat"
    assert video.count_frames(tmp_path / "other.mp4") == 1
    with pytest.raises(ValueError, match=r"list\.mp4 cannot be read as a video"):
        video.count_frames(path)
    with pytest.raises(ValueError, match=r"list\.mp4 cannot be read as a video"):
        video.Video(path).read(0)


def test_a_video_with_huge_frames(tmp_path, monkeypatch):
    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    monkeypatch.setenv("DEEPBASIS_MAX_MILLIONS", "0.004")
    with pytest.raises(ValueError, match=r"holds 0\.004096 million pixels, more than the limit"):
        video.Video(path).read(0)
    monkeypatch.setenv("DEEPBASIS_MAX_MILLIONS", "nan")
    with pytest.raises(ValueError, match="DEEPBASIS_MAX_MILLIONS is 'nan', not a number above 0"):
        video.Video(path).read(0)
