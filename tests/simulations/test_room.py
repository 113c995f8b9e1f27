"""Nobody's rows decide whether a run has room: of one user so many count as is public, and room comes first."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import row_files
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.data.index import Rows, opened
from quoron.data.population import ItemStore
from quoron.data.user_rows import first_rows, first_rows_of_users, group
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder, claim
from quoron.training import memory, run, table
from quoron.training.table import TableSetup
from quoron_client.data import fused, tables, text_files
from quoron_client.data.items import ItemBatch
from quoron_client.losses import make_loss
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError, RunError
from quoron_server import rounds

MOST = 3


def kept_of(people: pa.Table, most: int) -> list[int]:
    """Places of the rows that count, one by one."""
    seen: dict[str, int] = {}
    places = []
    for place, who in enumerate(people["who"].to_pylist()):
        seen[who] = seen.get(who, 0) + 1
        places += [place] * (seen[who] <= most)
    return places


@pytest.fixture
def shuffled() -> pa.Table:
    """Rows of users of whom many have more than MOST, in no order."""
    people = row_files.rows(200)
    return people.take(pa.array(np.random.Generator(np.random.Philox(7)).permutation(people.num_rows)))


class TestTheFirstRows:
    def test_are_those_of_each_user_alone(self, shuffled: pa.Table) -> None:
        _, owners = group(shuffled, "who")
        assert np.flatnonzero(first_rows(owners, MOST)).tolist() == kept_of(shuffled, MOST)

    @pytest.mark.parametrize("laid", [row_files.in_order, row_files.in_buckets])
    @pytest.mark.parametrize("small", [False, True])
    def test_of_a_folder_are_dealt(
        self, laid: object, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = laid(row_files.rows(300, most=40), tmp_path / "rows")  # type: ignore[operator]
        if small:
            for name, value in (("CHUNK", 1000), ("SEGMENT", 100), ("STAGE", (3000, 3000))):
                monkeypatch.setattr(f"quoron.data.population.{name}", value)
            monkeypatch.setenv("QUORON_MEMORY", "1000")
        rows = Rows.of(opened(tmp_path / "rows", "who"), row_files.RULES)
        loss = make_loss("logistic", feature_norm=1.0)
        order = np.random.Generator(np.random.Philox(1)).permutation(rows.users)
        everybody = np.arange(rows.users)
        items = ItemStore(replace(rows, most=MOST), everybody, order, loss).filled.items(everybody)
        few = read.take(pa.array(kept_of(read, MOST)))
        users, owners = group(few, "who")
        wanted = fused.encoded(row_files.RULES, few).batch(users, owners)
        for name in ("features", "labels", "offsets", "weights"):
            np.testing.assert_array_equal(getattr(items, name), getattr(wanted, name))

    @pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
    def test_are_the_items_of_a_run(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """However the table is given; the number of users is that of all rows."""
        draw = np.random.Generator(np.random.Philox(4))
        owners = draw.integers(0, 2000, 20_000)
        people = pa.table({"who": owners, **{name: draw.integers(0, 2, len(owners)) for name in [*"abcd", "sick"]}})
        monkeypatch.setattr(table, "max_rows", lambda *_, **__: MOST)
        path = tmp_path / f"rows.{kind}"
        if kind == "csv":
            pyarrow.csv.write_csv(people, path)
        elif kind == "parquet":
            pq.write_table(people, path)
        held = table.load_rows(configs.parse(CONFIG.format(path=path)), tmp_path, people if kind == "frame" else None)
        items = held.items
        assert isinstance(items, ItemBatch)
        users, whose = group(people, "who")
        kept = first_rows(whose, MOST)
        wanted = fused.encoded(held.encoding, people.filter(pa.array(kept)))
        assert items.counts.max() == MOST
        assert items.users == users
        if kind != "csv":  # whose users are numbered by their text
            np.testing.assert_array_equal(items.features, wanted.batch(users, whose[kept]).features)

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_are_all_that_stays_while_a_file_is_read(
        self, shuffled: pa.Table, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / f"rows.{kind}"
        if kind == "csv":
            pyarrow.csv.write_csv(shuffled, path)
        else:
            pq.write_table(shuffled, path, row_group_size=50)
        monkeypatch.setattr(text_files, "_PIECE", 999)
        keep = partial(first_rows_of_users, user="who", most=MOST)
        found, whole = tables.read(path, keep=keep, most=100), tables.read(path)
        assert found.num_rows < whole.num_rows
        first, wanted = (each.take(pa.array(kept_of(each, MOST))) for each in (found, whole))
        assert repr(first.to_pylist()) == repr(wanted.to_pylist())


class TestMemory:
    def test_that_is_not_there_is_told_before_the_charge(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the refusal says to do is then enough, with as little memory."""
        monkeypatch.setattr(memory, "FEW", 0)
        monkeypatch.setattr(memory, "free_memory", lambda: 5000)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("QUORON_MEMORY", "5000")
        config = charged_in(tmp_path, written(tmp_path, 2000, 5))
        with pytest.raises(RunError, match=r"memory for the items.*bytes.*Nothing is charged now.*by a URL") as refused:
            run.prepare(config, tmp_path, name="trial")
        assert "5,000 are left" in str(refused.value)
        assert not (tmp_path / "book").exists()
        by_url = charged_in(tmp_path, (tmp_path / "rows.parquet").as_uri())
        prepared = run.prepare(by_url, tmp_path, name="trial")
        run.carry_out(prepared, claim(by_url, "trial"))
        assert charges(prepared) == 1

    def test_is_not_asked_for_again_where_the_run_began(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither for its items nor for answers of a round: it is charged, and may be all that its group can pay."""
        monkeypatch.setattr(memory, "FEW", 0)
        config = charged_in(tmp_path, written(tmp_path, 2000, 5))
        config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update=PHASED)})
        folder = claim(config, "trial")
        with pytest.raises(row_files.Stop):
            run.carry_out(run.prepare(config, tmp_path, name="trial"), folder, [row_files.Stopping()])
        monkeypatch.setattr(memory, "free_memory", lambda: 0)
        prepared = run.prepare(config, tmp_path, name="trial", folder=folder)
        run.carry_out(prepared, folder)
        assert charges(prepared) == 1

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    @pytest.mark.parametrize("error", [MemoryError(), pa.lib.ArrowMemoryError("malloc of size 9 failed")])
    def test_for_the_rows_themselves_is_told_so_too(
        self, kind: str, error: MemoryError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = written(tmp_path, 20, 5)
        if kind == "csv":
            path = tmp_path / "rows.csv"
            pyarrow.csv.write_csv(pq.read_table(tmp_path / "rows.parquet"), path)

        def full(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(
            "pyarrow.parquet.ParquetFile.iter_batches" if kind == "parquet" else "pyarrow.csv.read_csv", full
        )
        with pytest.raises(RunError, match=r"Expected memory for the rows of this table.*Nothing is charged now"):
            table.load_rows(charged_in(tmp_path, path), tmp_path)

    @pytest.mark.parametrize("by_url", [False, True])
    def test_for_the_answers_of_a_round_is_made_sure_of_before_the_charge(
        self, by_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a table in memory and of files; where sums are all that is read, none is needed."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(memory, "free_memory", lambda: 100_000)
        path = written(tmp_path, 2000, 5)
        summed = charged_in(tmp_path, path.as_uri() if by_url else path)
        kept = summed.model_copy(update={"algorithm": summed.algorithm.model_copy(update=PHASED)})
        prepared = run.prepare(kept, tmp_path, name="trial")
        with pytest.raises(
            RunError,
            match=r"memory for the answers of a round \(320,000 bytes\) and .* \([\d,]+ bytes\), got too little: 100,0",
        ):
            run.carry_out(prepared, claim(kept, "trial"))
        assert charges(prepared) == 0
        prepared = run.prepare(summed, tmp_path, name="trial")
        run.carry_out(prepared, claim(summed, "trial"))
        assert charges(prepared) == 1

    def test_for_the_state_in_the_store_is_made_sure_of_before_the_charge(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = charged_in(tmp_path, written(tmp_path, 2000, 5))
        prepared = run.prepare(config, tmp_path, name="trial")
        monkeypatch.setattr(rounds, "MAX_STATE", 20)
        with pytest.raises(ConfigError, match=r"state takes at most 20 bytes, .* for one-pass-dp-sgd"):
            run.prepare(config, tmp_path, name="trial")
        assert charges(prepared) == 0

    def test_that_ends_after_the_charge_ends_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is told by name, and the same command goes on for the same charge."""
        config = charged_in(tmp_path, written(tmp_path, 2000, 5))
        config = config.model_copy(update={"run": config.run.model_copy(update={"out": str(tmp_path / "out")})})
        ask, asked = run.CuratorEngine.ask, []

        def once(engine: run.CuratorEngine, question: Question) -> object:
            asked.append(question)
            if len(asked) == 2:
                raise MemoryError
            return ask(engine, question)

        monkeypatch.setattr(run.CuratorEngine, "ask", once)
        prepared = run.prepare(config, tmp_path, name="trial")
        with pytest.raises(RunError, match=r"memory for the rest of this run.*will not be again"):
            run.carry_out(prepared, claim(config, "trial"))
        run.resume(RunFolder(tmp_path / "out"))
        assert charges(prepared) == 1


def test_memory_that_ends_anywhere_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("quoron.cli.app.app", full)
    assert invoke(["show", "presets"]) == 1
    assert "Expected more memory" in capsys.readouterr().err


PHASED = {"name": "winsorised-erm"}
CONFIG = """
population = {{ kind = "table", path = "{path}", user = "who", label = "sick", items_per_user = 5, columns.numeric = {{ a = [0, 1], b = [0, 1], c = [0, 1], d = [0, 1] }} }}
privacy = {{ epsilon = 1.0, delta = 1e-6 }}
"""  # noqa: E501


def charged_in(folder: Path, path: Path | str) -> configs.Config:
    """A run on a table, charged to a store of its own."""
    config = configs.parse(
        CONFIG.format(path=path) + 'algorithm = { name = "one-pass-dp-sgd", options = { rounds = 3 } }'
    )
    return config.model_copy(update={"train": config.train.model_copy(update={"ledger": str(folder / "book")})})


def charges(prepared: Prepared[TableSetup]) -> int:
    """How often the population was charged."""
    assert prepared.account is not None
    with prepared.account() as ledger:
        return sum(len(ledger.charges(group)) for group in ledger.groups())


CHILD = """
import resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
from quoron.__main__ import main
sys.argv[1:] = sys.argv[2:]
sys.exit(main())
"""


def written(folder: Path, users: int, items: int, more: int = 0) -> Path:
    """A table of users with as many items each, of whom the first has so many more."""
    owners = np.concatenate([np.repeat(np.arange(users), items), np.zeros(more, np.int64)])
    draw = np.random.Generator(np.random.Philox(2))
    values = {name: draw.integers(0, 2, len(owners)).astype(np.int8) for name in "abcd"}
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"who": owners.astype(np.int32), **values, "sick": values["a"]}), path)
    return path


@pytest.mark.programs
def test_a_user_with_very_many_rows_is_trained_like_others(tmp_path: Path) -> None:
    """Two gigabytes do for one with 3·10⁷ rows, whose items would take as many."""
    path = written(tmp_path, 2000, 5, more=30_000_000)
    (tmp_path / "run.toml").write_text(CONFIG.format(path=path), encoding="utf-8")
    arguments = ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), "--set"]
    arguments += [f"train.ledger={tmp_path / 'book.sqlite'}"]
    child = [sys.executable, "-c", CHILD, str(2 << 30), *arguments]
    done = subprocess.run(child, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.json").is_file()
