"""A folder in an object store, a real S3 server of this machine: the bits of the same folder here, and clear errors."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

import quoron
from quoron.data.index import opened
from quoron.data.population import from_dataset
from quoron.engine.choice import Inline
from quoron_client.data.files import Files
from quoron_client.losses import Logistic
from quoron_privacy.errors import DataError
from row_files import RULES, described, in_buckets, rows

pytestmark = pytest.mark.usefixtures("planned_once")


@dataclass(frozen=True)
class Store:
    """An S3 server with one bucket."""

    address: str  # host:port

    def url(self, path: str = "visits") -> str:
        """A folder in the bucket."""
        return f"s3://clinic/{path}?endpoint_override={self.address}&scheme=http&region=us-east-1"

    @property
    def files(self) -> Any:
        """Its file system."""
        return pyarrow.fs.FileSystem.from_uri(f"{self.url('')}&allow_bucket_creation=true")[0]


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        yield Store("{}:{}".format(*running.get_host_and_port()))
    finally:
        running.stop()


@pytest.fixture
def store(server: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """With two files in `visits`, the same as in tmp_path / "d"."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    in_buckets(rows(1200), tmp_path / "d", files=2)
    server.files.create_dir("clinic")
    for path in sorted((tmp_path / "d").glob("*.parquet")):
        upload(server, path, path.name)
    return server


def upload(store: Store, path: Path, name: str) -> None:
    with store.files.open_output_stream(f"clinic/visits/{name}", compression=None) as stream:
        stream.write(path.read_bytes())


def test_a_run_on_a_store_has_the_bits_of_the_folder(store, tmp_path):
    assert opened(store.url(), "who").users == 1200
    here = quoron.simulate(described(tmp_path, "d"), out=tmp_path / "here")
    config = described(tmp_path, store.url())
    there = quoron.simulate(config, out=tmp_path / "there")
    np.testing.assert_array_equal(there.weights, here.weights)
    assert there.summary.excess_risk == here.summary.excess_risk


@pytest.mark.programs
def test_workers_on_a_store_release_the_model_of_the_folder(store, tmp_path):
    here = quoron.simulate(described(tmp_path, "d"), out=tmp_path / "here")
    engine = Inline(workers=2)
    shared = quoron.simulate(described(tmp_path, store.url()), out=tmp_path / "shared", engine=engine)
    np.testing.assert_array_equal(shared.weights, here.weights)


def test_an_object_that_changes_or_disappears_is_named_by_a_run_and_counts_in_the_next(store, tmp_path):
    crowd = from_dataset(store.url(), RULES, user="who", loss=Logistic(), test_fraction=0.0)
    pq.write_table(pq.read_table(tmp_path / "d" / "bucket-001.parquet").slice(9), tmp_path / "other.parquet")
    upload(store, tmp_path / "other.parquet", "bucket-001.parquet")
    with pytest.raises(DataError, match=r"'bucket-001.parquet' in .* as it was, but it has changed"):
        crowd.items(np.arange(10))
    store.files.delete_file("clinic/visits/bucket-001.parquet")
    with pytest.raises(DataError, match=r"'bucket-001.parquet' in .*, but it has disappeared"):
        crowd.items(np.arange(10))
    assert opened(store.url(), "who").users < 1200


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(DataError, match="URL without credentials") as error:
        Files.found("s3://somebody:something@clinic/visits")
    assert "something" not in str(error.value)
