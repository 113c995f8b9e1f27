"""A pattern stands for columns of the header, in its order, and for none that can be meant in two ways."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron import wildcards
from quoron_privacy.errors import ConfigError


class TestAPattern:
    HEADER = ("who", "x1", "age", "x2", "xx", "late", "x_sick")

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            (["z*"], r"columns that 'z\*' stands for, got none among the 7 of the table. Letters"),
            (["x*", "*1"], r"declared once, got 'x1' as 'x\*' and as '\*1'. Write patterns"),
            (["x*[0:2]"], r"got 'x\*\[0:2\]': both in one"),
        ],
    )
    def test_that_is_empty_or_can_be_meant_in_two_ways_is_refused(self, declared: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            wildcards.resolved(declared, self.HEADER, roles={"who"})

    def test_leaves_out_what_is_excluded(self) -> None:
        def found(*without: str) -> list[tuple[str, ...]]:
            return wildcards.resolved(["x*", "age"], [*self.HEADER, "x[0:9]"], roles={"who"}, without=without)

        assert found("x_*", "xx", "x[0:9]", "x1*") == [("x2",), ("age",)]
        with pytest.raises(ConfigError, match="excludes, got none in the table"):
            found("z*")
        with pytest.raises(ConfigError, match="exclude that nobody declares, got 'age'"):
            found("age")

    def test_gives_no_range_twice_and_none_to_a_column_that_is_not_listed(self) -> None:
        with pytest.raises(ConfigError, match=r"one range of 'x1', got those of 'x\*' and of '\*1'"):
            wildcards.ranged(["x1"], {"x*": 1, "*1": 2})
        with pytest.raises(ConfigError, match="that are numeric, got 'b', which is none"):
            wildcards.ranged(["a"], {"b": 1})

    def test_is_a_column_whose_own_name_it_is_if_it_is_no_other(self) -> None:
        assert wildcards.resolved(["age*sex"], ["age", "sex", "age*sex"], roles=()) == [("age*sex",)]
        with pytest.raises(ConfigError, match=r"got column 'age\*sex', which could be meant in two ways. Rename it"):
            wildcards.resolved(["age*sex"], ["age*sex", "agexsex"], roles=())
        with pytest.raises(ConfigError, match=r"got column 'x\[0:9\]', which could"):
            wildcards.resolved(["x*"], ["x[0:9]", "x1"], roles=())

    @given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
    def test_fits_what_a_regular_expression_says(self, pattern: str, name: str) -> None:
        pattern += "*"
        wanted = ".*".join(map(re.escape, pattern.split("*")))
        assert wildcards._fits(name, pattern) == (re.fullmatch(wanted, name) is not None)

    def test_of_many_stars_takes_no_time(self) -> None:
        """Backtracking would take longer than the universe has been there."""
        assert not wildcards._fits("a" * 5000, "a*" * 2000 + "b")
