"""The builders that serve single calls, submit and map."""

from __future__ import annotations

import array
import os
import pathlib
import tracemalloc

import pytest

from clipfleet.index import read_picture
from clipfleet.producer import BadInput, ErrorCode, Url, Vector, WorkerPath, files, requests
from clipfleet.producer.config import Delivery
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.request import decode_request

KEYS = QueueKeys("q")


def on_the_wire(request):
    request_id, payload = Delivery().encode(request.loaded(), KEYS.inbox("default.x"))
    decoded, envelope = decode_request(payload, KEYS)
    assert decoded.id == request_id
    assert envelope.reply_to == KEYS.inbox("default.x")
    return decoded.pipeline, decoded.inputs, decoded.options


@pytest.mark.parametrize(
    ("request_", "wire"),
    [
        (requests.echo([1, None]), ("echo", {"data": [1, None]}, {})),
        (requests.embed_text("hi"), ("embed_text", {"text": "hi"}, {})),
        (requests.embed_image(b"p"), ("embed_image", {"image": b"p"}, {})),
        (requests.embed_image(bytearray(b"p")), ("embed_image", {"image": b"p"}, {})),
        (requests.embed_image(memoryview(b"p")), ("embed_image", {"image": b"p"}, {})),
        (requests.embed_image(Url("https://a/b")), ("embed_image", {"image": {"url": "https://a/b"}}, {})),
        (requests.embed_image(WorkerPath("pics/b")), ("embed_image", {"image": {"path": "pics/b"}}, {})),
        (requests.index_image(b"p"), ("index_image", {"image": b"p", "collection": "images"}, {})),
        (
            requests.index_image(b"p", id="7", metadata={"a": [1]}, collection="c", return_vector=True),
            (
                "index_image",
                {"image": b"p", "collection": "c", "id": "7", "metadata": {"a": [1]}},
                {"return_vector": True},
            ),
        ),
        (requests.search("hi"), ("search", {"text": "hi", "collection": "images", "limit": 10}, {})),
        (
            requests.search(image=b"p", limit=3, filter="a > 1", output_fields=("a",), collection="c"),
            ("search", {"image": b"p", "collection": "c", "limit": 3, "filter": "a > 1", "output_fields": ["a"]}, {}),
        ),
        (requests.delete(ids=("a", "b")), ("delete", {"ids": ["a", "b"], "collection": "images"}, {})),
        (requests.delete(filter="a > 1", collection="c"), ("delete", {"filter": "a > 1", "collection": "c"}, {})),
        (requests.run("mine", {"image": b"p", "n": 1}, {"o": 2}), ("mine", {"image": b"p", "n": 1}, {"o": 2})),
    ],
)
def test_a_builder_gives_what_the_protocol_says(request_, wire):
    assert on_the_wire(request_) == wire


@pytest.mark.parametrize(
    "vector",
    [
        [1.0, 0.5, -2.0],
        (1, 0.5, -2),
        array.array("f", [1, 0.5, -2]),
        array.array("d", [1, 0.5, -2]),
        memoryview(array.array("f", [1, 0.5, -2])),
        Vector(array.array("f", [1, 0.5, -2]).tobytes()),
    ],
)
def test_a_vector_may_be_any_sequence_or_buffer_of_floats(vector):
    _, inputs, _ = on_the_wire(requests.search(vector=vector))
    assert Vector.of(inputs["vector"]).tolist() == [1.0, 0.5, -2.0]


def test_a_numpy_vector_is_taken_as_it_is():
    numpy = pytest.importorskip("numpy")
    for dtype in ("f4", "f8"):
        _, inputs, _ = on_the_wire(requests.search(vector=numpy.array([1, 0.5, -2], dtype)))
        assert Vector.of(inputs["vector"]).tolist() == [1.0, 0.5, -2.0]
    with pytest.raises(TypeError, match="one-dimensional"):
        requests.search(vector=numpy.zeros((2, 2), "f4"))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: requests.embed_image("a.png"), "pathlib.Path"),
        (lambda: requests.run("mine", {"image": "a.png"}), "pathlib.Path"),
        (lambda: requests.embed_image(None), "NoneType"),
        (lambda: requests.embed_text(b"bytes"), "a text is a str"),
        (requests.search, "exactly one"),
        (lambda: requests.search("a", image=b"p"), "exactly one"),
        (lambda: requests.search("a", text="b"), "once"),
        (lambda: requests.search(vector="abc"), "a vector is"),
        (lambda: requests.search(vector=5), "a vector is"),
        (lambda: requests.search(vector=b"abcd"), "float32"),
        (requests.delete, "exactly one"),
        (lambda: requests.delete(ids=["a"], filter="x"), "exactly one"),
        (lambda: requests.delete(ids="abc"), r"write ids=\['abc'\]"),
        (lambda: requests.delete(ids=5), "a list of str, not int"),
        (lambda: requests.search("a", output_fields="name"), r"write output_fields=\['name'\]"),
        (lambda: requests.search("a", output_fields=b"name"), "a list of str, not bytes"),
        (lambda: requests.index_image(b"p", metadata=[1]), r"metadata is a mapping such as \{'year'.*, not list"),
        (lambda: requests.index_image(b"p", metadata=""), "metadata is a mapping"),
        (lambda: requests.run("echo", "x"), r"inputs is a mapping such as \{'data'.*, not str"),
        (lambda: requests.run("echo", None), "inputs is a mapping"),
        (lambda: requests.run("echo", {}, "x"), "options is a mapping"),
        (lambda: requests.run(None, {}), "a pipeline is named by a str"),
        (lambda: requests.checked("a"), r"requests\.embed_text\("),
    ],
)
def test_a_wrong_argument_is_a_type_error_that_says_what_to_write(build, says):
    with pytest.raises(TypeError, match=says):
        build()


def test_a_file_is_read_when_it_is_sent_and_not_before(tmp_path):
    path = tmp_path / "later.png"
    request = requests.embed_image(path, tag="t")
    assert request.reads_file
    with pytest.raises(FileNotFoundError):
        request.loaded()
    path.write_bytes(b"now")
    loaded = request.loaded()
    assert (loaded.inputs, loaded.tag, loaded.reads_file) == ({"image": b"now"}, "t", False)


def test_a_file_above_the_limit_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    path.write_bytes(b"x" * 1001)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1000)
    with pytest.raises(BadInput, match="too_large"):
        requests.embed_image(path).loaded()
    path.write_bytes(b"x" * 1000)
    assert requests.embed_image(path).loaded().inputs == {"image": b"x" * 1000}


def test_a_file_whose_size_is_not_known_is_read_to_the_limit_alone(monkeypatch):
    path = pathlib.Path("/proc/self/status")  # regular, and 0 bytes by its own word
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    with pytest.raises(BadInput, match="too_large"):
        requests.embed_image(path).loaded()


def test_a_file_whose_size_is_not_known_is_read_whole():
    path = pathlib.Path("/proc/version")
    assert requests.embed_image(path).loaded().inputs == {"image": path.read_bytes()}


@pytest.mark.parametrize("read", [lambda path: requests.embed_image(path).loaded().inputs["image"], read_picture])
def test_a_file_takes_the_room_of_what_it_holds_and_not_of_the_limit(tmp_path, read):
    path = tmp_path / "small.png"
    path.write_bytes(b"x" * 60_000)
    tracemalloc.start()
    try:
        assert len(read(path)) == 60_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to a pipe"])
def test_what_is_no_regular_file_is_bad_input_at_once_and_leaves_nothing_open(kind, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "link to a pipe").symlink_to(tmp_path / "pipe")
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    with pytest.raises(BadInput, match="is not a regular file") as caught:
        requests.embed_image(tmp_path / kind).loaded()
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before
