"""What a date says is one thing, wherever it stands: in text, in Arrow, in pandas, and whatever stands beside it."""

import datetime
import json
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.odd_values import OBJECTS, TEXTS
from quoron_client.data import fused, tables
from quoron_client.data.dates import WORDS, DateNumber, DatePart
from quoron_client.data.declared import check_types
from quoron_client.data.encoding import Categorical, Encoding, Hashed, Numeric, Signs
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

    @given(st.dates())
    def test_says_days_by_weeks_and_ordinals_too(self, day):
        year, week, weekday = day.isocalendar()
        ordinal = f"{day.year:04}-{day.timetuple().tm_yday:03}"
        texts = [day.isoformat(), ordinal, ordinal.replace("-", ""), day.isoformat().replace("-", "")]
        if 0 < year < 10_000:
            texts += [f"{year:04}-W{week:02}-{weekday}", f"{year:04}W{week:02}{weekday}"]
        midnight = datetime.datetime.combine(day, datetime.time())
        assert said(texts) == [expected(midnight)] * len(texts)

    @pytest.mark.parametrize(
        ("text", "year", "month", "day"),
        [
            ("2000-02-29", 2000, 2, 29),
            ("2024-02-29", 2024, 2, 29),
            ("0000-02-29", 0, 2, 29),
            ("-9999-01-01", -9999, 1, 1),
            ("+9999-12-31", 9999, 12, 31),
            ("-0004-02-29", -4, 2, 29),
            ("+999999999-12-31", 999_999_999, 12, 31),
            ("-999999999-01-01", -999_999_999, 1, 1),
            ("2024-12-31T24:00", 2025, 1, 1),
            ("2016-12-31T23:59:60Z", 2016, 12, 31),
        ],
    )
    def test_has_leap_days_and_years_without_end(self, text, year, month, day):
        (found,) = said([text])
        assert (found[4], found[0] + 1, found[2] + 1) == (year, month, day)

    @pytest.mark.parametrize("text", [
        "1900-02-29", "2023-02-29", "2024-13-01", "2024-00-10", "2024-04-31", "2024-1-1", "24-01-01",
        "2024-01", "2024", "2024-366x", "2023-366", "2024-W54-1", "2023-W53-1", "2024-W01-8", "2024-W1-1",
        "2024-01-01T25:00", "2024-01-01T", "2024-01-01T24:01", "2024-01-01T10:60", "2024-01-01T10:00:61",
        "2024-01-01T10:00+24:00", "2024-01-01T1:00", "2024-01-01T10:00+1", "2024-01-01T10:00 Z",
        "2024-01-01T10:00:00.", "2024-01-01x", "-2024-01", "+20240101", "T", "01.02.2024", "1/2/2024", "", " ",
        "x", "2024-01-01T10:00+05:45:00:00", "2024--01", "-", "+", "2024-W", "2024W01", "１９９９-01-01",
        "2024-01-01T10:00+00:00:", "12:",
    ])  # fmt: skip
    def test_does_not_say_what_is_none(self, text):
        assert said([text]) == [NONE]

    def test_says_a_time_of_no_day(self):
        for text in ("13:30", "T1330", "T13", "13:30:00.5Z", "t13:30+01:00"):
            assert said([text]) == [(-1, -1, -1, 13, None, None)]
        assert said(["24:00"]) == [(-1, -1, -1, 0, None, None)]

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

    def test_takes_one_digit_where_two_may_stand_and_short_years_by_their_century(self):
        found = said(["1.2.2024 3:4", "01.02.2024 03:04"], format="%d.%m.%Y %H:%M")
        assert found == [expected(datetime.datetime(2024, 2, 1, 3, 4))] * 2
        found = DateNumber("a", "year", 0, 1, format="%d/%m/%y").read(pa.table({"a": ["1/2/68", "1/2/69", "1/2/5"]}))
        assert found.tolist()[:2] == [2068, 1969]
        assert np.isnan(found[2])

    def test_has_a_day_for_each_of_its_offsets(self):
        found = said(["2024-01-01 23:30 +01:00", "2024-01-01 23:30"], format="%Y-%m-%d %H:%M %z", zone="Asia/Kathmandu")
        assert found == [expected(datetime.datetime(2024, 1, 2, 4)), NONE]

    def test_of_an_hour_alone_has_one(self):
        table = pa.table({"a": ["13:05", "25:00", "1 PM"]})
        assert DatePart("a", "hour", "%H:%M").read(table).tolist() == [13, -1, -1]
        assert DatePart("a", "hour", "%I %p").read(table).tolist() == [-1, -1, 13]

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

    def test_counts_seconds_since_1970(self):
        moments = [datetime.datetime(2024, 2, 29, 13, 30), datetime.datetime(1969, 12, 31, 23, 59, 59)]
        for form, unit in (("unix", 1), ("unix-ms", 1000), ("unix-us", 10**6)):
            numbers = [
                (each - datetime.datetime(1970, 1, 1)) // datetime.timedelta(seconds=1) * unit for each in moments
            ]
            for column in (pa.array(numbers), pa.array(map(str, numbers)), pa.array(numbers, pa.float64())):
                assert said(column, format=form) == [expected(each) for each in moments]
        (later,) = said(pa.array([0]), format="unix", zone="+05:45")
        assert later[3] == 5
        odd = pa.array([np.nan, np.inf, 1e300, -1e300, 2.0**54, None])
        assert said(odd, format="unix") == [NONE] * 6


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

    def test_says_the_same_after_a_file(self, tmp_path):
        zone = "America/St_Johns"
        moments = pd.date_range("2024-03-10 04:00", periods=60, freq="7min", tz=zone)
        frame = pd.DataFrame({"a": moments})
        expected_ = said(tables.read(frame).column("a"))
        frame.to_csv(tmp_path / "pandas.csv", index=False)
        frame.to_parquet(tmp_path / "a.parquet")
        assert said(tables.read(tmp_path / "pandas.csv").column("a")) == expected_
        assert said(tables.read(tmp_path / "a.parquet").column("a")) == expected_
        pyarrow.csv.write_csv(pa.table(frame), tmp_path / "arrow.csv")  # in UTC
        polars = moments.strftime("%Y-%m-%dT%H:%M:%S.000000%z")
        pd.DataFrame({"a": polars}).to_csv(tmp_path / "polars.csv", index=False)
        assert said(pa.array(polars)) == expected_
        for name in ("pandas.csv", "a.parquet", "arrow.csv", "polars.csv"):
            assert said(tables.read(tmp_path / name).column("a"), zone=zone) == expected_, name

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

    def test_of_text_has_a_place(self):
        table = pa.table({"a": pa.array(TEXTS)})
        for feature in EVERY:
            found = feature.read(table)
            assert len(found) == len(TEXTS)


class TestAZone:
    @given(st.lists(st.integers(-5_364_576_000, 7_258_032_000), min_size=1, max_size=20), st.sampled_from(ZONES))
    def test_shows_what_python_shows_from_1800_to_2199(self, seconds, zone):
        begin = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        moments = [(begin + datetime.timedelta(seconds=each)).astimezone(ZoneInfo(zone)) for each in seconds]
        column = pa.array(seconds, pa.int64()).cast(pa.timestamp("s", "UTC"))
        assert said(column, zone=zone) == [expected(each.replace(tzinfo=None)) for each in moments]

    def test_is_put_forward_and_back_to_the_second(self):
        texts = ["2024-03-31T00:59:59Z", "2024-03-31T01:00:00Z", "2024-10-27T00:59:59Z", "2024-10-27T01:00:00Z"]
        assert [each[3] for each in said(texts, zone="Europe/Berlin")] == [1, 3, 2, 2]

    def test_moves_nothing_that_has_no_offset(self):
        assert said(["2024-03-31T12:00"], zone="Asia/Kathmandu") == said(["2024-03-31T12:00"])
        assert said(pa.array([0], pa.timestamp("s")), zone="Asia/Kathmandu")[0][3] == 0

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

    @pytest.mark.parametrize(
        ("kind", "fix"),
        [
            (pa.date32(), r"dates = \{ column"),
            (pa.timestamp("ns", "UTC"), r"dates = \{ column"),
            (pa.time64("us"), r"dates = \{ column"),
            (pa.duration("s"), "a number of one unit, such as days"),
            (pa.list_(pa.float64()), "Make a column of each of its elements"),
            (pa.struct([("b", pa.int8())]), "Make a column of each"),
        ],
    )
    @pytest.mark.parametrize("feature", [Numeric("a", 0, 1), Categorical("a", ("x",)), Hashed("a", 8)])
    def test_of_numbers_and_texts_name_what_to_write_instead(self, feature, kind, fix):
        rules = Encoding((feature,), Signs("sick"))
        with pytest.raises(DataError, match=f"Expected column 'a' to hold numbers or text, got type .*{fix}"):
            rules.check(pa.table({"a": pa.nulls(1, kind), "sick": [1]}))

    @pytest.mark.parametrize("kind", [pa.duration("s"), pa.list_(pa.int8())])
    def test_of_dates_are_refused_by_a_type_that_has_none(self, kind):
        with pytest.raises(DataError, match="Expected column 'a' to hold dates, times or text, got type"):
            Encoding((DAYS,)).check(pa.table({"a": pa.nulls(1, kind)}))

    def test_are_told_to_clients_as_they_are(self):
        dates = (DatePart("a", "hour", "%H:%M", "Europe/Berlin"), DateNumber("b[0:200]", "days", 0, 9, "2007-01-01"))
        rules = Encoding((*EVERY, *dates, Hashed("c", 64), Hashed("d[0:150]", 1024)), Signs("sick"))
        text = json.dumps(rules.as_json())
        assert Encoding.from_json(json.loads(text)) == rules
        assert "d[0:150]" in text
        assert len(text) < 2000
        with pytest.raises(ConfigError, match="time zone"):
            Encoding.from_json({"features": [{"column": "a", "part": "hour", "zone": "Mars/Olympus"}]})


def test_a_row_without_a_date_has_no_part_and_no_number():
    table = pa.table({"a": ["2024-02-29T23:00", "x", None], "sick": [1, 0, 1]})
    rules = Encoding((DatePart("a", "weekday"), DatePart("a", "hour")), Signs("sick"), intercept=False)
    found = fused.encoded(rules, table)
    assert found.kept.all()
    assert np.count_nonzero(found.features, axis=1).tolist() == [2, 0, 0]
    assert found.counts.unknown == {"a weekday": (2, 2), "a hour": (2, 2)}
    numbers = Encoding((DateNumber("a", "year", 2000, 2024),), Signs("sick"))
    assert fused.encoded(numbers, table).kept.tolist() == [True, False, False]
    by_year = Encoding((DateNumber("a", "year", 2000, 2024),), Signs("sick"), missing="middle")
    filled = fused.encoded(by_year, table)
    assert filled.features[:, 0].tolist()[1:] == [0.0, 0.0]
    assert numbers.names == ("a year", "intercept")
    assert rules.names[:2] == ("a weekday=Monday", "a weekday=Tuesday")
