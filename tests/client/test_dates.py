"""What a date says is one thing, wherever it stands: in text, in Arrow, in pandas, and whatever stands beside it."""

import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.odd_values import OBJECTS
from quoron_client.data import tables
from quoron_client.data.dates import WORDS, DateNumber, DatePart
from quoron_client.data.declared import check_types
from quoron_client.data.encoding import Encoding
from quoron_privacy.errors import ConfigError, DataError

DAYS = DateNumber("a", "days", 0, 1, "1970-01-01")
YEAR = DateNumber("a", "year", 0, 1)
EVERY = (*(DatePart("a", part) for part in WORDS), YEAR, DAYS)
NONE = (-1, -1, -1, -1, None, None)
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Casablanca", "Australia/Lord_Howe", "UTC")
MOMENTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))


def said(values, **how):
    """The month, weekday, day, hour, year and day number of each value; of text, unless it is a column already."""
    column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, pa.large_string())
    table = pa.table({"a": column})
    parts = [DatePart("a", part, **how).read(table).tolist() for part in WORDS]
    numbers = [DateNumber("a", "year", 0, 1, **how), DateNumber("a", "days", 0, 1, "1970-01-01", **how)]
    parts += [[None if np.isnan(v) else int(v) for v in each.read(table)] for each in numbers]
    return [*zip(*parts, strict=True)]


def expected(moment):
    """The same of a moment of Python's."""
    days = moment.toordinal() - datetime.date(1970, 1, 1).toordinal()
    return (moment.month - 1, moment.weekday(), moment.day - 1, moment.hour, moment.year, days)


class TestISO8601:
    @given(MOMENTS, st.sampled_from(["T", " ", "t"]), st.sampled_from(["auto", "hours", "minutes", "microseconds"]))
    def test_says_what_python_says(self, moment, apart, precision):
        basic = moment.strftime("%Y").zfill(4) + moment.strftime("%m%dT%H%M%S")
        texts = [
            moment.isoformat(apart, precision),
            basic,
            f" {moment.isoformat()}+05:45\n",
            f"{moment.isoformat()}-1130",
        ]
        assert said(texts) == [expected(moment)] * 4

    @given(st.lists(st.text("0123456789-+:TWZz. ,", max_size=30), max_size=20))
    def test_of_any_signs_raises_nothing_and_is_that_of_each_alone(self, texts):
        assert said(texts) == [said([text])[0] for text in texts]


class TestADeclaredFormat:
    @given(
        MOMENTS.filter(lambda moment: moment.year >= 1000),
        st.sampled_from([
            "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%Y%j%H", "%d-%b-%Y %H", "%d %B %Y, %H h", "%F %T",
            "%Y-%m-%dT%H:%M:%S.%f", "100%% %d/%m/%Y %R", "é%d😀%m %Y %H",
        ]),
    )  # fmt: skip
    def test_says_what_python_says(self, moment, form):
        text = moment.strftime(form)
        assert said([text, f" {text} \n"], format=form) == [expected(moment)] * 2
        assert said([text + "x", text[:-1] + "?", "0" + text], format=form) == [NONE] * 3

    def test_has_a_day_for_each_of_its_offsets(self):
        found = said(["2024-01-01 23:30 +01:00", "2024-01-01 23:30"], format="%Y-%m-%d %H:%M %z", zone="Asia/Kathmandu")
        assert found == [expected(datetime.datetime(2024, 1, 2, 4)), NONE]

    @pytest.mark.parametrize(
        ("part", "form", "message"),
        [
            ("month", "%H:%M", "a format with a year, %Y or %y, for the month of date 'a'"),
            ("hour", "%d.%m.%Y", "a format with an hour"),
            ("hour", "%I:%M", "%p beside %I"),
            ("month", "%d.%Q.%Y", "Expected a format of %Y, %y, .*'unix'.*, got '%d.%Q.%Y'"),
            ("month", "%d.%m.%Y%", "Expected a format of"),
            ("month", "", "a format with a year"),
            ("month", "%Y", "a format with a month, %m, %b or %B, for the month"),
            ("weekday", "%Y-%m", "a format with a day, %d or %j"),
            ("month", "dd.mm.yyyy", "a format with a year"),
        ],
    )
    def test_that_says_no_such_part_is_refused(self, part, form, message):
        with pytest.raises(ConfigError, match=message):
            DatePart("a", part, form)


def same_moments():
    """The same moments, to the second, in every type that has them."""
    texts = ["2024-02-29 13:30:05", "1969-12-31 23:59:59", "1700-01-01 00:00:00", None, "2261-12-31 12:00:00"]
    moments = [None if text is None else datetime.datetime.fromisoformat(text) for text in texts]
    yield "text", pa.array(texts)
    yield "coded text", pa.array(texts).dictionary_encode()
    yield "bytes", pa.array([None if text is None else text.encode() for text in texts])
    for unit in ("s", "ms", "us", "ns"):
        yield unit, pa.array(moments, pa.timestamp(unit))
        yield f"{unit}, coded", pa.array(moments, pa.timestamp(unit)).dictionary_encode()
    yield "UTC", pa.array(moments, pa.timestamp("us", "UTC"))
    yield "zone", pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", "+00:00"))
    yield (
        "pieces",
        pa.chunked_array([pa.array(moments[:2], pa.timestamp("s")), pa.array(moments[2:], pa.timestamp("s"))]),
    )
    yield "slice", pa.array([None, *moments], pa.timestamp("us")).slice(1)
    for frame in (
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[ns]")}),
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[s]")}),
        pd.DataFrame({"a": pd.Series(moments, dtype=object)}),
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[us]").astype("category")}),
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[ns]").dt.tz_localize("UTC")}),
    ):
        yield str(frame["a"].dtype), tables.read(frame).column("a").combine_chunks()


class TestEveryDoor:
    def test_says_the_same_of_the_same_moment(self):
        found = {name: said(column) for name, column in same_moments()}
        assert len(found) > 15
        for name, each in found.items():
            assert each == found["text"], name

    def test_says_the_same_of_the_same_day(self):
        days = [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]
        found = said(pa.array(days, pa.date32()))
        assert found == said(pa.array(days, pa.date64())) == said([day and day.isoformat() for day in days])
        assert found == said(tables.read(pd.DataFrame({"a": pd.Series(days, dtype=object)})).column("a"))
        whole = pa.array([20240229, 10101, None, 99991231])
        assert said(whole)[::3] == found[::3]

    def test_says_an_hour_of_times(self):
        times = [datetime.time(13, 30), datetime.time(), None, datetime.time(23, 59, 59)]
        for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
            table = pa.table({"a": pa.array(times, kind)})
            assert DatePart("a", "hour").read(table).tolist() == [13, 0, -1, 23]
            with pytest.raises(DataError, match=r"hold dates for its year, got type time.*which has no day"):
                YEAR.read(table)


class TestAnyValue:
    def test_is_read_by_itself(self):
        """Whatever other rows hold: one user's cell moves nobody's number."""
        objects = [*OBJECTS, "2024-02-29", datetime.datetime(2024, 2, 29, 5, tzinfo=datetime.UTC)]
        together = tables.read(pd.DataFrame({"a": pd.Series(objects, dtype=object)})).column("a")
        alone = [tables.read(pd.DataFrame({"a": pd.Series([each], dtype=object)})).column("a") for each in objects]
        for how in ({}, {"zone": "Europe/Berlin"}, {"format": "%d.%m.%Y %H"}, {"format": "unix"}):
            assert said(together, **how) == [said(each, **how)[0] for each in alone]

    @given(
        st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=8),
        st.sampled_from(["s", "ms", "us", "ns"]),
        st.sampled_from([None, "UTC", "Europe/Berlin", "+14:00", "-23:59", "Asia/Kathmandu"]),
    )
    def test_of_a_timestamp_has_a_place(self, ticks, unit, zone):
        column = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))
        for each in said(column):
            assert all(-1 <= code < len(words) for code, words in zip(each, WORDS.values(), strict=False))
        assert [each[0] < 0 for each in said(column)] == [tick is None for tick in ticks]


class TestAZone:
    @given(st.lists(st.integers(-5_364_576_000, 7_258_032_000), min_size=1, max_size=20), st.sampled_from(ZONES))
    def test_shows_what_python_shows_from_1800_to_2199(self, seconds, zone):
        begin = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        moments = [(begin + datetime.timedelta(seconds=each)).astimezone(ZoneInfo(zone)) for each in seconds]
        column = pa.array(seconds, pa.int64()).cast(pa.timestamp("s", "UTC"))
        assert said(column, zone=zone) == [expected(each.replace(tzinfo=None)) for each in moments]

    @pytest.mark.parametrize(
        "zone", ["Europe/Nowhere", "../../etc/passwd", "+25:00", "01:00", "localtime", "a\0b", "America"]
    )
    def test_that_nobody_knows_is_refused(self, zone):
        with pytest.raises(ConfigError, match="Expected a time zone such as 'Europe/Berlin'"):
            DatePart("a", "hour", zone=zone)

    def test_of_a_column_that_nobody_knows_is_refused_by_its_type(self):
        with pytest.raises(DataError, match="time zone of column 'a' that is known"):
            said(pa.array([0], pa.timestamp("s", "Mars/Olympus")))


class TestDeclarations:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: DateNumber("a", "year", 2016, 2007), "range low < high of the year of date 'a'"),
            (lambda: DateNumber("a", "year", 0, 10_000), "range low < high of the year"),
            (lambda: DateNumber("a", "year", float("nan"), 1), "range low < high of the year"),
            (lambda: DateNumber("a", "year", 0, 1, "2007-01-01"), "no first day for years"),
            (lambda: DateNumber("a", "days", 0, 1), "a day such as '2007-01-31' for date 'a', got ''"),
            (lambda: DateNumber("a", "days", 0, 1, "1.1.2007"), "a day such as"),
            (lambda: DatePart("a", "minute"), "month, weekday, day, hour of date 'a', got 'minute'"),
        ],
    )
    def test_that_cannot_be_meant_are_refused(self, make, message):
        with pytest.raises(ConfigError, match=message):
            make()

    @pytest.mark.parametrize(
        ("feature", "kind", "message"),
        [
            (DAYS, pa.bool_(), "dates or times in feature 'a' of type bool"),
            (YEAR, pa.int16(), "dates or times in feature 'a' of type int16"),
            (DateNumber("a", "year", 1000, 1600), pa.timestamp("ns"), "a year within which feature 'a' .*can vary"),
            (DateNumber("a", "days", 0, 50, "2262-04-12"), pa.timestamp("ns"), "a days within which"),
        ],
    )
    def test_that_a_type_shows_to_be_a_mistake_are_refused(self, feature, kind, message):
        with pytest.raises(DataError, match=message):
            check_types(Encoding((feature,)), {"a": kind})

    @pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ns"), pa.timestamp("s"), pa.date32(), pa.string()])
    def test_that_a_type_can_hold_are_taken(self, kind):
        check_types(Encoding((*EVERY[:4], DateNumber("a", "year", 2000, 2030))), {"a": kind})

    @pytest.mark.parametrize("kind", [pa.duration("s"), pa.list_(pa.int8())])
    def test_of_dates_are_refused_by_a_type_that_has_none(self, kind):
        with pytest.raises(DataError, match="Expected column 'a' to hold dates, times or text, got type"):
            Encoding((DAYS,)).check(pa.table({"a": pa.nulls(1, kind)}))
