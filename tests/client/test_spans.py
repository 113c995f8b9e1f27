"""Columns that count up are one entry wherever they are told, and the same columns wherever they are read."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.conversation import terms
from quoron import config as configs
from quoron.operate.submission import dry_run, specify
from quoron_client.data import spans
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
        privacy = {{ delta = 1e-6 }}
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
        np.testing.assert_array_equal(short.encode(table).features, long.encode(table).features)

    def test_that_has_a_column_twice_is_refused(self) -> None:
        rules = Encoding((Numeric("x[0:50000]", 0, 1), Numeric("x49999", 0, 1)), label=Signs("sick"))
        with pytest.raises(ConfigError, match="got 'x49999' twice"):
            rules.check_meant("who")

    def test_that_has_the_label_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'x7' as both"):
            Encoding((Numeric("x[0:50000]", 0, 1),), label=Signs("x7"))


class TestAPattern:
    HEADER = ("who", "x1", "age", "x2", "xx", "late", "x_sick")

    @pytest.mark.parametrize(
        ("pattern", "names"),
        [
            ("x*", ("x1", "x2", "xx", "x_sick")),
            ("*x*", ("x1", "x2", "xx", "x_sick")),
            ("x*x", ("xx",)),
            ("*", ("x1", "age", "x2", "xx", "late", "x_sick")),
            ("*a*e", ("age", "late")),
            ("x1*", ("x1",)),
            ("age", ("age",)),
            ("x[0:9]", ("x[0:9]",)),
        ],
    )
    def test_stands_for_columns_of_the_header_in_its_order(self, pattern: str, names: tuple[str, ...]) -> None:
        assert spans.resolved([pattern], self.HEADER, roles={"who"}) == [names]

    def test_stands_for_no_column_that_has_another_role(self) -> None:
        assert spans.resolved(["x*"], self.HEADER, roles={"who", "x_sick"}) == [("x1", "x2", "xx")]

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            (
                ["z*"],
                r"columns that 'z\*' stands for, got none among the 7 of the table: 'who', 'x1', 'age', 'x2', 'xx', ",
            ),
            (["who*"], r"got none among"),
            (["x*", "*1"], r"declared once, got 'x1' as 'x\*' and as '\*1'. Write patterns"),
            (["x*", "x*"], r"got 'x1' as"),
            (["*", "*"], r"every pattern once, got '\*' twice"),
            (["x*[0:2]"], r"got 'x\*\[0:2\]': both in one"),
        ],
    )
    def test_that_is_empty_or_can_be_meant_in_two_ways_is_refused(self, declared: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            spans.resolved(declared, self.HEADER, roles={"who"})

    @pytest.mark.parametrize(
        ("declared", "found"),
        [
            (["x*", "x2"], [("x1", "xx", "x_sick"), ("x2",)]),
            (["x[0:2]", "x*"], [("x[0:2]",), ("x2", "xx", "x_sick")]),
            (["*", "x*", "age"], [("late",), ("x1", "x2", "xx", "x_sick"), ("age",)]),
            (["x1", "x1*"], [("x1",), ()]),
        ],
    )
    def test_leaves_a_column_to_its_own_name_and_the_rest_to_a_star(self, declared, found) -> None:
        assert spans.resolved(declared, self.HEADER, roles={"who"}) == found

    def test_leaves_out_what_is_excluded(self) -> None:
        def found(*without: str) -> list[tuple[str, ...]]:
            return spans.resolved(["x*", "age"], [*self.HEADER, "x[0:9]"], roles={"who"}, without=without)

        assert found("x_*", "xx", "x[0:9]", "x1*") == [("x2",), ("age",)]
        with pytest.raises(ConfigError, match="excludes, got none in the table"):
            found("z*")
        with pytest.raises(ConfigError, match="exclude that nobody declares, got 'age'"):
            found("age")

    def test_of_ten_thousand_are_found_in_one_look_at_the_header(self) -> None:
        """One by one they would be 3·10⁸ comparisons: minutes."""
        header = [f"{place}_{each}" for place in range(10_000) for each in "abc"]
        found = spans.resolved([f"{place}_*" for place in range(10_000)], header, roles=())
        assert [name for some in found for name in some] == header
        backwards = spans.resolved([f"*_{each}" for each in "abc"], header, roles=())
        assert [len(some) for some in backwards] == [10_000] * 3

    @pytest.mark.parametrize(
        ("listed", "ranges", "found"),
        [
            (["a", "x1"], {"a": 1, "x*": 2}, {"a": 1, "x1": 2}),
            (["a", "x1", "b"], {"a": 1, "*": 3, "x*": 2}, {"a": 1, "x1": 2, "b": 3}),
            (["*"], {"a": 1, "x*": 2}, {"*": None, "a": 1, "x*": 2}),
            (["a"], {}, {"a": None}),
        ],
    )
    def test_gives_ranges_to_columns_that_are_listed(self, listed, ranges, found) -> None:
        assert spans.ranged(listed, ranges) == found

    def test_gives_no_range_twice_and_none_to_a_column_that_is_not_listed(self) -> None:
        with pytest.raises(ConfigError, match=r"one range of 'x1', got those of 'x\*' and of '\*1'"):
            spans.ranged(["x1"], {"x*": 1, "*1": 2})
        with pytest.raises(ConfigError, match="that are numeric, got 'b', which is none"):
            spans.ranged(["a"], {"b": 1})

    def test_is_a_column_whose_own_name_it_is_if_it_is_no_other(self) -> None:
        assert spans.resolved(["age*sex"], ["age", "sex", "age*sex"], roles=()) == [("age*sex",)]
        with pytest.raises(ConfigError, match=r"got column 'age\*sex', which could be meant in two ways. Rename it"):
            spans.resolved(["age*sex"], ["age*sex", "agexsex"], roles=())
        with pytest.raises(ConfigError, match=r"got column 'x\[0:9\]', which could"):
            spans.resolved(["x*"], ["x[0:9]", "x1"], roles=())

    @given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
    def test_fits_what_a_regular_expression_says(self, pattern: str, name: str) -> None:
        pattern += "*"
        wanted = ".*".join(map(re.escape, pattern.split("*")))
        assert spans._fits(name, pattern) == (re.fullmatch(wanted, name) is not None)

    def test_of_many_stars_takes_no_time(self) -> None:
        """Backtracking would take longer than the universe has been there."""
        assert not spans._fits("a" * 5000, "a*" * 2000 + "b")

    def test_finds_the_same_again_in_what_it_found(self) -> None:
        """So a run folder, whose configuration has the columns, is read as it was written."""
        header = [*(f"x{each}" for each in range(300)), "age*sex", "who"]
        found = spans.resolved(["x*", "age*sex"], header, roles={"who"})
        result = [name for some in found for name in spans.spanned(some)]
        assert result == ["x[0:300]", "age*sex"]
        assert spans.meant(result, header, roles={"who"}) == found


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
        found, other = (each.encode(table).features[:, :200].reshape(4, 2, 100) for each in (counted, listed))
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
