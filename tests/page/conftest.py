# SPDX-License-Identifier: Apache-2.0
import pytest

pytest.importorskip("starlette", reason="the page needs `pip install deepbasis[page]`")

from starlette.testclient import TestClient

from deepbasis.commands.serve.file_access import CommandLineFiles
from deepbasis.page.access import Access
from deepbasis.page.server import make_app
from deepbasis.page.session import Workshop
from deepbasis.page.uploads import Uploads
from page.pages import Page

MODELS = ("indoor", "outdoor", "open")
ADDRESS = "http://127.0.0.1:8321"
SOCKET = "ws://127.0.0.1:8321/ws"


@pytest.fixture(scope="session")
def load_model(tmp_path_factory):
    """Models are loaded once for all tests."""
    unused = Uploads(tmp_path_factory.mktemp("unused"), 1, 1)
    return Workshop(MODELS, CommandLineFiles(), unused).load


@pytest.fixture
def loaded_once(load_model, monkeypatch):
    """Scripts and commands that load a model take the loaded one."""
    monkeypatch.setattr("deepbasis.load", load_model)
    monkeypatch.setattr("deepbasis.commands.complete.run.load_model", load_model)


@pytest.fixture
def folder(tmp_path):
    """The only folder that the server may write to."""
    made = tmp_path / "uploads"
    made.mkdir()
    return made


@pytest.fixture
def workshop(folder, load_model):
    return Workshop(MODELS, CommandLineFiles(), Uploads(folder, 2_000_000, 200_000), load_model)


@pytest.fixture
def client(workshop):
    app = make_app(workshop, Access.to("127.0.0.1", "secret"), max_pages=3)
    with TestClient(app, ADDRESS) as found:
        yield found


@pytest.fixture
def page(client):
    with client.websocket_connect(SOCKET, headers={"origin": ADDRESS}) as socket:
        yield Page(socket)
