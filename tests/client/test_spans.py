"""Columns that count up are one entry wherever they are told, and the same columns wherever they are read."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.conversation import terms
from quoron import config as configs
from quoron.operate.submission import dry_run, specify
from quoron_client.data import fused, spans
from quoron_client.data.encoding import Categorical, Encoding, Numeric, Signs
from quoron_client.data.features import together
from quoron_client.federation import read_terms
from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError, WireError
from quoron_server.specification import LONGEST, RunSpecification, describe, require_telling

WIDE = 100_000


def wanted(numeric: str, label: str = 'label = "sick"') -> configs.Config:
    """A federation's configuration with these numeric columns."""
    return configs.parse(
        f"""
        population = {{ kind = "table", path = "x.csv", user = "who", {label}, numeric = {{ {numeric} }} }}
        problem = {{ items_per_user = 5 }}
        privacy = {{ epsilon = 1.0, delta = 1e-6 }}
        algorithm = {{ name = "one-pass-dp-sgd" }}
        """
    )


class TestASpan:
    @pytest.mark.parametrize(
        ("declared", "names"),
        [
            ("x[0:3]", ("x0", "x1", "x2")),
            ("x[098:101]", ("x098", "x099", "x100")),
            ("x[9:11]", ("x9", "x10")),
            ("a[b][7:8]", ("a[b]7",)),
            ("[0:2]", ("0", "1")),
            ("x", ("x",)),
            ("x[0]", ("x[0]",)),
            ("x[:3]", ("x[:3]",)),
        ],
    )
    def test_stands_for_its_columns(self, declared: str, names: tuple[str, ...]) -> None:
        assert spans.named(declared) == names

    @pytest.mark.parametrize("declared", ["x[3:3]", "x[5:2]", "x[0:999999999]"])
    def test_of_no_column_or_of_too_many_is_refused(self, declared: str) -> None:
        with pytest.raises(ConfigError, match=r"Expected from 1 to 1,048,576 columns"):
            Encoding((Numeric(declared, 0, 1),))

    def test_is_refused_among_others_that_are_too_many_together(self) -> None:
        many = tuple(Numeric(f"{name}[0:1000000]", 0, 1) for name in "ab")
        with pytest.raises(ConfigError, match=r"at most 1,048,576 columns as features, got 2,000,000"):
            Encoding(many)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["x", "x0", "y1_", "", "z["]),
                st.sampled_from(["0", "00", "5", "95", "095", "12345678"]),
                st.integers(1, 130),
                st.sampled_from([1.0, 2.0]),
            ),
            max_size=6,
        )
    )
    def test_is_told_so_that_the_same_columns_come_back(self, runs: list[tuple[str, str, int, float]]) -> None:
        features = [
            Numeric(name, 0, high)
            for prefix, first, many, high in runs
            for name in spans.named(f"{prefix}[{first}:{int(first) + many}]")
        ]
        rules = Encoding(tuple(features), label=Signs("sick"))
        assert Encoding.from_json(json.loads(json.dumps(rules.as_json()))) == rules
        assert len(together(features)) <= len(features)

    def test_is_what_a_hundred_columns_or_more_are_told_as(self) -> None:
        features = [Numeric(f"x{each}", 0, 1) for each in range(99)]
        assert together(features) == tuple(features)
        assert together([*features, Numeric("x99", 0, 1), Numeric("x100", 0, 2)]) == (
            Numeric("x[0:100]", 0, 1),
            Numeric("x100", 0, 2),
        )

    def test_is_encoded_as_its_columns_are(self) -> None:
        draw = np.random.Generator(np.random.Philox(1))
        table = pa.table({f"x{each}": draw.random(20) for each in range(3)} | {"k0": ["a", "b"] * 10, "k1": ["b"] * 20})
        short = Encoding((Numeric("x[0:3]", 0, 1), Categorical("k[0:2]", ("a", "b"))))
        numbers = (Numeric(f"x{each}", 0, 1) for each in range(3))
        long = Encoding((*numbers, *(Categorical(f"k{each}", ("a", "b")) for each in (0, 1))))
        assert short == long
        np.testing.assert_array_equal(fused.encoded(short, table).features, fused.encoded(long, table).features)

    def test_that_has_a_column_twice_is_refused(self) -> None:
        rules = Encoding((Numeric("x[0:50000]", 0, 1), Numeric("x49999", 0, 1)), label=Signs("sick"))
        with pytest.raises(ConfigError, match="got 'x49999' twice"):
            rules.check_meant("who")

    def test_that_has_the_label_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'x7' as both"):
            Encoding((Numeric("x[0:50000]", 0, 1),), label=Signs("x7"))


class TestManyIntegers:
    def test_are_told_as_one_text(self) -> None:
        rules = Encoding((Categorical("k", tuple(range(-5, 50_000))), Categorical("w", (1, 2, 3))))
        text = json.dumps(rules.as_json())
        assert '"categories": "-5:50000"' in text
        assert '"categories": [1, 2, 3]' in text
        assert (
            Encoding.from_json(json.loads(text))
            == rules
            == Encoding((Categorical("k", range(-5, 50_000)), rules.features[1]))
        )
        assert rules.dimension == 50_005 + 3 + 1

    def test_are_encoded_as_listed_ones_are(self) -> None:
        table = pa.table({"k": [0, 99, 100, None], "t": ["0", "99", "x", ""]})
        counted = Encoding((Categorical("k", range(100)), Categorical("t", range(100))))
        listed = Encoding(tuple(Categorical(each, tuple(range(99, -1, -1))) for each in "kt"))
        found, other = (fused.encoded(each, table).features[:, :200].reshape(4, 2, 100) for each in (counted, listed))
        np.testing.assert_array_equal(found, other[:, :, ::-1])

    @pytest.mark.parametrize("values", ["0:0", "5:2", "0:1048577", "9007199254740991:9007199254740993", "a:b", "0", ""])
    def test_of_none_or_of_too_many_are_refused(self, values: str) -> None:
        with pytest.raises(ConfigError, match="Expected values as a list, or from 1 to 1,048,576 integers"):
            spans.counted(values)
        with pytest.raises(ConfigError):
            Encoding.from_json({"features": [{"column": "k", "categories": values}]})

    def test_cannot_make_a_client_hold_more_than_is_allowed(self) -> None:
        """2²⁰ values a column, of 20,000 columns, are 10¹¹: refused by their number, before any is made."""
        each = {"column": "k", "categories": "0:1048576"}
        with pytest.raises(WireError, match=r"at most 1,048,576 columns that declarations imply, got 20,971,520,000"):
            read_terms("r", terms(columns={"features": [each] * 20_000}))
        with pytest.raises(WireError, match=r"got 1,000,000,000"):
            read_terms("r", terms(columns={"features": [{"column": "k[0:1000]", "categories": "0:1000000"}]}))

    def test_and_texts_that_look_so_are_not_the_same(self) -> None:
        assert Categorical("time", ("10:30", "10:45")).categories == ("10:30", "10:45")


class TestAWideRun:
    def test_is_told_to_coordinator_and_clients(self) -> None:
        """10⁵ columns, told in a line at each step."""
        given_, plan = specify(wanted(f'"x[0:{WIDE}]" = [0, 1]'), run="wide", users=10**6, seconds=60)
        text = given_.as_text()
        assert len(text) < 5000
        assert RunSpecification.parse(text) == given_
        found = json.dumps(describe(given_, plan))
        assert len(found) < 5000
        assert read_terms("wide", found).columns.names == (*(f"x{each}" for each in range(WIDE)), "intercept")

    def test_of_names_of_their_own_is_refused_by_name_where_it_is_submitted(self) -> None:
        """It was a raw error of gRPC at 10⁵, and one of length on the coordinator at 20,000."""
        numeric = ", ".join(f'"column{each}a" = [0, 1]' for each in range(22_000))
        with pytest.raises(ConfigError, match=f"Expected a run that can be told in {LONGEST:,} characters") as refused:
            specify(wanted(numeric), run="wide", users=10**6, seconds=60)
        assert "'x[0:100000]'" in str(refused.value)

    def test_is_measured_in_bytes(self) -> None:
        """So that what is short enough is within what gRPC takes, whatever its letters are."""
        given_, _ = specify(wanted('"x[0:3]" = [0, 1]'), run="wide", users=10**6, seconds=60)
        names = tuple("é" * 400 + f"{each}é" for each in range(900))
        rules = replace(given_.columns, features=(Categorical("k", names),))
        long = given_.model_copy(update={"columns": replace(rules, features=rules.features * 2)})
        text = long.model_dump_json()
        assert len(text) < LONGEST < len(text.encode())
        for refusing in (long.as_text, lambda: RunSpecification.parse(text)):
            with pytest.raises(ConfigError, match="Expected a specification of at most"):
                refusing()

    def test_that_clients_would_not_hear_of_is_refused(self) -> None:
        given_, plan = specify(wanted('"x[0:3]" = [0, 1]'), run="wide", users=10**6, seconds=60)
        names = tuple("é" * 100 + f"{each}é" for each in range(2000))  # six characters each in JSON for everybody
        long = given_.model_copy(update={"columns": replace(given_.columns, features=(Categorical("k", names),))})
        assert len(long.as_text().encode()) < LONGEST
        with pytest.raises(ConfigError, match=f"can be told in {wire.MAX_DESCRIPTION:,} characters"):
            require_telling(long, plan)
        with pytest.raises(WireError):
            read_terms("wide", json.dumps(describe(long, plan)))

    def test_beyond_what_messages_hold_is_refused_before_it_is_sent(self) -> None:
        config = wanted('"x[0:30000]" = [0, 1]', label="classes = '0:1000', label = 'sick'")
        with pytest.raises(ConfigError, match=r"Expected messages of at most 536,870,912 bytes"):
            specify(config, run="wide", users=10**6, seconds=60)
        less = wanted('"x[0:30000]" = [0, 1]', label="classes = '0:100', label = 'sick'")
        with pytest.raises(ConfigError, match=r"Expected messages of at most 67,108,864 bytes"):
            specify(less, run="wide", users=10**6, seconds=60, whole=True)

    @pytest.mark.slow
    def test_beyond_what_messages_hold_is_refused_by_a_dry_run_too(self) -> None:
        config = wanted('"x[0:30000]" = [0, 1]', label="classes = '0:1000', label = 'sick'")
        with pytest.raises(ConfigError, match=r"Expected messages of at most 536,870,912 bytes"):
            dry_run(config, 10**6)


def test_a_client_makes_no_more_of_a_span_than_is_allowed() -> None:
    """Whoever announces a run cannot have a client name 10⁹ columns."""
    columns = {"features": [{"column": "x[0:900000000]", "low": 0, "high": 1}]}
    with pytest.raises(WireError, match="columns"):
        read_terms("r", terms(columns=columns))
