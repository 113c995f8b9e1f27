"""Whether a client's table looks like that of several people. If so, its owner is asked.

A client's whole table is one user. Where a hospital runs one client for all of its patients, what is promised is
promised for the hospital, and for none of its patients. A table looks like that of several people if

| what                                         | when                                                                 |
| -------------------------------------------- | -------------------------------------------------------------------- |
| a column's name is that of people            | `patient`, `user_id`, `SubjectNo`, `MRN`, and it has two values      |
| a column repeats like an identifier          | text or whole numbers, but neither dates, times nor years; 20 values |
|                                              | or more, each in two rows on the average, none in more than a fifth  |
|                                              | of the rows; each in one block, but that one in ten may come again   |
|                                              | or 50 or more, each at most thrice as often as the one in the middle |
| there are many more rows than a person holds | more than ten times `items_per_user`, if the owner declared it       |

It is a question, not a finding: the rows of one person's orders look so too, and shuffled rows of people of whom some
have many and others few, whose column is called `x`, do not. docs/federation.md says how often either was seen.
"""

import re

import numpy as np
import pyarrow as pa

from quoron_client.data import cells, columns
from quoron_privacy.errors import DataError

FEWEST, EVEN = 20, 50  # values of an identifier that is known by its blocks, and by how evenly it repeats
MANY = 10  # times the declared items
_WORDS = "user|patient|person|people|client|customer|subject|member|participant|respondent|proband|resident|employee"
_WORDS += "|student|pupil|child|donor|tenant|voter|citizen|household|kunde|mitarbeiter|teilnehmer"
_NUMBERED = "id|ids|no|nr|num|number|nummer|key|code|uuid|guid|hash|name|ref|index|pseudonym"
_NAMED = re.compile(rf"(({_WORDS})(in|en|n|s)?({_NUMBERED})?|uid|mrn|ssn|usubjid|subjid|ptid|patid|pseudonym)")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{1,2}:\d{2}(:.*)?|(19|20)\d\d([01]\d[0-3]\d)?")


def several(table: pa.Table, items_per_user: int | None = None) -> str | None:
    """Why a table looks like that of several people, without a value or a number of it; None if it does not.

    A column is told by its place: the first row of a file without a header is somebody's.
    """
    if items_per_user is not None and table.num_rows > MANY * items_per_user:
        return f"more than {MANY} times the {items_per_user:,} rows that a person holds"
    for place, name in enumerate(table.column_names, 1):
        try:
            found = columns.texts(table, name)
        except DataError:  # dates and the like, or a column that is there twice
            continue
        coded = found.drop_null().dictionary_encode()
        values, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        if len(values) > 1 and _NAMED.fullmatch(re.sub(r"[\W_]", "", name).lower()):
            return f"several values in column {place}, whose name says that it is of people"
        if _repeats(codes, len(values)) and _identifies(values):
            return f"values in column {place} that repeat like an identifier"
    return None


def _repeats(codes: "np.ndarray[tuple[int], np.dtype[np.int64]]", values: int) -> bool:
    """Whether values that are as many come in blocks, each of several rows, or evenly."""
    if values < FEWEST or len(codes) < 2 * values:
        return False
    counts = np.bincount(codes)
    blocks = 1 + int(np.count_nonzero(np.diff(codes)))
    in_blocks = blocks <= 1.1 * values and counts.max() <= len(codes) / 5
    return in_blocks or (values >= EVEN and counts.max() <= 3 * np.median(counts))


def _identifies(values: list[str]) -> bool:
    """Whether they are text or whole numbers, and neither dates, times nor years."""
    said = np.array([cells.parsed(each) for each in values])
    measured = not np.isnan(said).any() and not np.all(said == np.round(said))
    return not measured and not all(_DATE.fullmatch(each) for each in values)
