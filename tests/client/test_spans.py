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
from quoron_privacy.errors import ConfigError, WireError
from quoron_server.specification import LONGEST, RunSpecification

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


class TestManyIntegers:
    def test_are_encoded_as_listed_ones_are(self) -> None:
        table = pa.table({"k": [0, 99, 100, None], "t": ["0", "99", "x", ""]})
        counted = Encoding((Categorical("k", range(100)), Categorical("t", range(100))))
        listed = Encoding(tuple(Categorical(each, tuple(range(99, -1, -1))) for each in "kt"))
        found, other = (fused.encoded(each, table).features[:, :200].reshape(4, 2, 100) for each in (counted, listed))
        np.testing.assert_array_equal(found, other[:, :, ::-1])

    def test_cannot_make_a_client_hold_more_than_is_allowed(self) -> None:
        """2²⁰ values a column, of 20,000 columns, are 10¹¹: refused by their number, before any is made."""
        each = {"column": "k", "categories": "0:1048576"}
        with pytest.raises(WireError, match=r"at most 1,048,576 columns that declarations imply, got 20,971,520,000"):
            read_terms("r", terms(columns={"features": [each] * 20_000}))
        with pytest.raises(WireError, match=r"got 1,000,000,000"):
            read_terms("r", terms(columns={"features": [{"column": "k[0:1000]", "categories": "0:1000000"}]}))


class TestAWideRun:
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
