"""A federation on this machine: whose items its clients hold."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from federation.crowd import DIMENSION, items
from quoron.config import parse
from quoron.local import kept, people, rehearsal
from quoron.local.folder import ITEMS, ORDER, RUN, Folder
from quoron.local.items import load_items
from quoron.local.order import Order
from quoron.local.people import give, give_tables, settle, silos_in
from quoron.local.programs import MADE
from quoron.operate.submission import declared
from quoron.simulation import run as runs
from quoron_client.data.items import ItemBatch
from quoron_privacy.errors import ConfigError
from quoron_server.silos import Silos
from small_run import TOML

TABLE = f"""
[population]
kind = "table"
path = "people.parquet"
user = "who"
label = "sick"
numeric = {{ {", ".join(f"x{j} = [-1.0, 1.0]" for j in range(DIMENSION))} }}
intercept = false
test_fraction = 0.25

[domain]
radius = 2.0

[problem]
items_per_user = 4

[privacy]
epsilon = 8.0
delta = 1e-2
allow_large_delta = true

[algorithm]
name = "dp-sgd-wor"
options = {{ rounds = 3 }}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twelve users of four rows each, of whom one has none that can be used."""
    whole = items(12)
    broken = [
        None if who == "person-00004" else x
        for who, x in zip(whole["who"].to_pylist(), whole["x0"].to_pylist(), strict=True)
    ]
    pq.write_table(
        whole.set_column(whole.column_names.index("x0"), "x0", pa.array(broken)), tmp_path / "people.parquet"
    )
    return tmp_path


class TestItems:
    def test_made_up_users_items_come_as_they_are(self, tmp_path: Path) -> None:
        prepared, folder = (
            runs.prepare(parse(TOML, settings=("population.users=30",)), tmp_path),
            Folder(tmp_path / "f"),
        )
        for number in range(1, 31):
            folder.client(number).mkdir(parents=True)
        give(folder, prepared, tmp_path)
        for number in (1, 7, 30):
            wanted = prepared.scene.population.items(np.array([number - 1]))
            assert _same(load_items(folder.client(number) / MADE), wanted)

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_started_again_everybody_keeps_their_items_and_only_new_clients_get_some(
        self, source: str, table: Path, tmp_path: Path
    ) -> None:
        folder = _empty(tmp_path / "f", 9)
        give_tables(folder, parse(source), table, 6)
        before = {path: path.read_bytes() for path in _items(folder)}
        folder.client(2).joinpath(ITEMS).write_bytes(b"theirs")
        before[folder.client(2) / ITEMS] = b"theirs"
        told = (folder.path / RUN).read_bytes()
        give_tables(folder, None, table, 6)
        give_tables(folder, None, table, 8)
        give_tables(folder, parse(source), table, 9)
        assert {path: path.read_bytes() for path in before} == before
        assert (folder.path / RUN).read_bytes() == told
        assert len(_items(folder)) == 9
        fresh = _empty(tmp_path / "fresh", 9)
        give_tables(fresh, parse(source), table, 9)
        assert (fresh.client(9) / ITEMS).read_bytes() == (folder.client(9) / ITEMS).read_bytes()

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_too_many_clients_settle_on_nothing(self, source: str, table: Path, tmp_path: Path) -> None:
        folder, config = _empty(tmp_path / "f", 20), parse(source)
        with pytest.raises(ConfigError, match="Say fewer"):
            give_tables(folder, config, table, 10_000)
        assert not _items(folder)
        give_tables(folder, parse(TOML), table, 2)

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_silos_have_the_rows_of_their_persons_whose_names_stay(
        self, source: str, table: Path, tmp_path: Path
    ) -> None:
        """Those of the first names are the first silo's."""
        folder, more = _empty(tmp_path / "f", 3), ("population.users=12",) if source is TOML else ()
        config = parse(source.replace("[population]", "[population]\nsilos = [3, 4, 5]"), settings=more)
        found = silos_in(folder, config, table)
        assert found is not None
        user, silos = found
        assert silos.sizes == (3, 4, 5)
        give_tables(folder, config, table, 3, silos)
        held = [set(pq.read_table(folder.client(number) / ITEMS)[user].to_pylist()) for number in (1, 2, 3)]
        assert [len(each) for each in held] == [3, 4, 5]
        assert max(held[0]) < min(held[1]) <= max(held[1]) < min(held[2])
        told = parse((folder.path / RUN).read_text())
        assert (told.population.silos, told.population.user) == ((3, 4, 5), user)  # type: ignore[union-attr]
        assert declared(told, 12).users == 12
        folder.write(ORDER, {"people": [3, 4, 5], "user": user})
        assert silos_in(folder, None, tmp_path / "gone") == (user, Silos((3, 4, 5))), (
            "the table need not be there again"
        )

    def test_sizes_that_do_not_add_up_and_other_clients_than_silos_start_nothing(
        self, table: Path, tmp_path: Path
    ) -> None:
        config = parse(TOML.replace("[population]", "[population]\nsilos = [2, 3]"))
        with pytest.raises(ConfigError, match="5 persons in 2 silos"):
            silos_in(Folder(tmp_path), config, table)
        some = parse(TOML.replace("[population]", "[population]\nsilos = 3"))
        with pytest.raises(ConfigError, match="a client for each of 3 silos, got --clients 20"):
            kept.start(tmp_path, some, table, clients=20, listen="127.0.0.1:1", control="127.0.0.1:2")
        assert not [*tmp_path.glob("clients/*")]
        for wrong in ({"people": (3, 4, 5)}, {"people": (2, 3), "user": "who"}):
            with pytest.raises(ConfigError, match="persons of each of 3 silos"):
                Order(clients=3, processes=1, listen="127.0.0.1:1", control="127.0.0.1:2", **wrong)

    def test_a_table_that_is_cut_off_is_not_there(
        self, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = _empty(tmp_path / "f", 2)
        monkeypatch.setattr(people.pq, "write_table", _half)
        with pytest.raises(KeyboardInterrupt):
            give_tables(folder, parse(TABLE), table, 2)
        assert not _items(folder)

    @pytest.mark.parametrize(
        "source", [TABLE, TABLE.replace("test_fraction", "outlier_fraction = 0.3\ntest_fraction"), TOML]
    )
    def test_after_a_simulation_everybody_has_a_table_and_nothing_else_of_it_is_left(
        self, source: str, table: Path, tmp_path: Path
    ) -> None:
        prepared = runs.prepare(parse(source), table)
        users = prepared.scene.population.users
        folder = _empty(tmp_path / "f", users)
        give(folder, prepared, table)
        rehearsal.write(folder, prepared)
        with pytest.raises(ConfigError, match="has not ended"):
            give_tables(folder, None, table, users)
        settle(folder, prepared, table)
        assert {path.name for path in folder.path.rglob("*") if path.is_file()} == {ITEMS, RUN}
        assert len(_items(folder)) == users
        before = [path.read_bytes() for path in _items(folder)]
        give_tables(folder, None, table, users)
        assert [path.read_bytes() for path in _items(folder)] == before
        if source is not TOML:
            plain = _empty(tmp_path / "plain", users)
            give(plain, runs.prepare(parse(TABLE), table), table)
            assert [path.read_bytes() for path in _items(plain)] == before, "their own rows, whatever was made of them"
        with pytest.raises(ConfigError, match="Say fewer"):
            give_tables(folder, None, table, users + 1)
        with pytest.raises(ConfigError, match="Leave the source away"):
            give_tables(folder, parse(source), table, users)


def _same(one: ItemBatch, other: ItemBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("features", "labels", "offsets"))


def _empty(path: Path, clients: int) -> Folder:
    for number in range(1, clients + 1):
        Folder(path).client(number).mkdir(parents=True)
    return Folder(path)


def _items(folder: Folder) -> list[Path]:
    return sorted(folder.path.glob(f"clients/*/{ITEMS}"))


def _half(_: pa.Table, where: object) -> None:
    if isinstance(where, Path):
        where.write_bytes(b"PAR1")
    raise KeyboardInterrupt
