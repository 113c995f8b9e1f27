"""What a population is: many users on one machine, each with items, some perhaps faulty; and the truth to compare with.

Everything a plan may use is public: `users`, `dimension`, `items_per_user`, the loss with its bounds, and `knowledge`.
`optimum`, `excess_risk`, `test_metrics` and `corruption` are functions of private data, for simulation reports only.

Random streams are counter-based: the value at (seed, purpose, user, position) is a pure function of those four, so a
user's data, and whether it is an outlier, do not depend on who else is asked, or when.

    >>> import numpy as np
    >>> words(seed=0, purpose=0, users=np.array([0])).tolist()
    [[1713891541, 3781805453, 3159862348, 2600524760]]

Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw (2011); the normals by Box and Muller (1958), with the logarithm,
sine and cosine as the float32 polynomials of Cephes. Only IEEE additions, products and square roots are used, no
library functions, so the bits are the same on every machine. Loops run over the blocks of many users at a time, with
integers of one width and without a branch, so that a compiler does sixteen of them at once: a normal takes about a
nanosecond. This is simulated *data*; privacy noise never comes from here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss
from quoron_client.protocol.domains import Domain, L2Ball, on_boundary
from quoron_privacy.kernels.prebuilt import njit
from quoron_server.problem import Beliefs

if TYPE_CHECKING:
    from quoron.data.population import DatasetPopulation, FileUsers
    from quoron.data.synthetic import Synthetic
    from quoron.data.table import TablePopulation, TableUsers
    from quoron_client.data.encoding import Encoding


class Purpose(IntEnum):
    """Which stream; no two share a value."""

    SIGNAL = 0  # direction of the optimum
    FEATURES = 1
    LABELS = 2
    SHIFT = 3  # a user's own deviation from the common signal
    USER = 4  # words 0 and 1: whether an outlier, how many items
    SPLIT = 6  # which users are held out
    DROPOUT = 7  # block r: who does not answer in round r


_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_HALF_WORD, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_SIGN, _QUARTER = np.uint32(1 << 31), np.uint32(1 << 30)
_GROUP, _LANES = 512, 16  # blocks that are drawn together, and as many as a register holds: loops do whole registers


def words(*, seed: int, purpose: int, users: NDArray[np.int64], block: int = 0) -> NDArray[np.uint32]:
    """Return the four 32-bit words of each user at one block of a stream, shape (k, 4)."""
    out = np.empty((4, len(users)), np.uint32)
    _one_block(np.uint64(seed), np.uint32(purpose), users, np.uint32(block), out)
    return np.ascontiguousarray(out.T)


def uniforms(values: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Words to numbers in (0, 1): the mid-points of 2³² cells."""
    return (values.astype(np.float64) + 0.5) * 2.0**-32


def normals(*, seed: int, purpose: int, user: int, count: int) -> NDArray[np.float32]:
    """Return the first `count` standard normals of one stream, float32."""
    out = np.empty(count, np.float32)
    fill_normals(np.uint64(seed), np.uint32(purpose), np.array([user]), np.array([0, count]), out)
    return out


@njit(inline="always", error_model="numpy")
def _philox(block, user, purpose, seed):  # type: ignore[no-untyped-def]
    # A product's upper half is never read: 64 bits stand for 32.
    c0, c1, c2, c3 = np.uint64(block), np.uint64(user) & _LOW, np.uint64(user) >> _HALF_WORD, np.uint64(purpose)
    k0, k1 = seed & _LOW, seed >> _HALF_WORD
    for _ in range(10):
        p0, p1 = _M0 * (c0 & _LOW), _M1 * (c2 & _LOW)
        c0, c2 = (p1 >> _HALF_WORD) ^ c1 ^ k0, (p0 >> _HALF_WORD) ^ c3 ^ k1
        c1, c3 = p1, p0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@njit(cache=True, nogil=True, error_model="numpy")
def _one_block(seed, purpose, users, block, out):  # type: ignore[no-untyped-def]
    for i in range(users.size):
        out[0, i], out[1, i], out[2, i], out[3, i] = _philox(block, users[i], purpose, seed)


@njit(inline="always", error_model="numpy")
def _gaussian_radius(word):  # type: ignore[no-untyped-def]
    # sqrt(-2 ln x): x = m 2^e with m in [sqrt(1/2), sqrt(2)), the polynomial is ln(m) around 1.
    x = np.float32(np.float32(word) * np.float32(2.0**-32) + np.float32(2.0**-33))
    bits = np.float32(x).view(np.int32)
    e = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    t = np.int32(bits - np.int32(e << np.int32(23))).view(np.float32) - np.float32(1.0)
    p = np.float32(7.0376836292e-2) * t - np.float32(1.1514610310e-1)
    p = p * t + np.float32(1.1676998740e-1)
    p = p * t - np.float32(1.2420140846e-1)
    p = p * t + np.float32(1.4249322787e-1)
    p = p * t - np.float32(1.6668057665e-1)
    p = p * t + np.float32(2.0000714765e-1)
    p = p * t - np.float32(2.4999993993e-1)
    p = p * t + np.float32(3.3333331174e-1)
    z = t * t
    log = p * t * z - np.float32(0.5) * z + t + np.float32(e) * np.float32(0.6931471805599453)
    return np.sqrt(np.float32(-2.0) * log)


@njit(inline="always", error_model="numpy")
def _two_normals(radius_word, angle_word):  # type: ignore[no-untyped-def]
    # The two top bits choose a quadrant, the next 24 an angle in [-pi/4, pi/4).
    r = _gaussian_radius(radius_word)
    t = np.float32(np.int32(np.int32(angle_word << np.uint32(2)) >> np.int32(8))) * np.float32(np.pi / 4 * 2.0**-23)
    z = t * t
    sine = (np.float32(-1.9515295891e-4) * z + np.float32(8.3321608736e-3)) * z - np.float32(1.6666654611e-1)
    sine = sine * z * t + t
    cosine = (np.float32(2.443315711809948e-5) * z - np.float32(1.388731625493765e-3)) * z
    cosine = (cosine + np.float32(4.166664568298827e-2)) * z * z - np.float32(0.5) * z + np.float32(1.0)
    # Odd quadrants exchange the two, the upper half turns the first's sign and the middle half the second's: in bits.
    turned = np.int32(np.int32(angle_word << np.uint32(1)) >> np.int32(31))
    first, second = np.float32(r * sine).view(np.int32), np.float32(r * cosine).view(np.int32)
    exchanged = np.int32((first ^ second) & turned)
    upper, middle = np.int32(angle_word & _SIGN), np.int32(np.uint32(angle_word + _QUARTER) & _SIGN)
    return np.int32(first ^ exchanged ^ upper).view(np.float32), np.int32(second ^ exchanged ^ middle).view(np.float32)


@njit(inline="always", error_model="numpy")
def _next_words(seed, purpose, users, starts, user, done, words):  # type: ignore[no-untyped-def]
    """As many blocks as `words` (4, _GROUP) has room for, from users[user]'s block `done` on.

    The result is where the next begin (user, done), and how many whole registers of blocks these are.
    """
    block, own, held = np.zeros(_GROUP, np.uint32), np.zeros(_GROUP, np.uint64), 0
    while user < users.size and held < _GROUP:
        needed = (starts[user + 1] - starts[user] + 3) // 4
        take, place, number = min(needed - done, _GROUP - held), np.uint64(held), np.uint64(users[user])
        for j in range(np.uint64(take)):  # an index that could be negative would be looked at each time
            block[place + j], own[place + j] = np.uint32(np.uint64(done) + j), number
        held, done = held + take, done + take
        if done == needed:
            user, done = user + 1, 0
    held = (held + _LANES - 1) // _LANES * _LANES
    for j in range(held):
        words[0, j], words[1, j], words[2, j], words[3, j] = _philox(block[j], own[j], purpose, seed)
    return user, done, held


@njit(inline="always", error_model="numpy")
def _hand_out(numbers, starts, user, done, end, rest, out):  # type: ignore[no-untyped-def]
    """Write the numbers of blocks from users[user]'s `done` to users[end]'s `rest` where they belong."""
    place = np.uint64(0)
    while user < end or (user == end and done < rest):
        count = starts[user + 1] - starts[user]
        blocks = (rest if user == end else (count + 3) // 4) - done
        first = np.uint64(starts[user] - starts[0] + 4 * done)
        for i in range(np.uint64(min(4 * blocks, count - 4 * done))):
            out[first + i] = numbers[place + i]
        place += np.uint64(4 * blocks)
        user, done = user + 1, 0


@njit(cache=True, nogil=True, error_model="numpy")
def fill_normals(seed, purpose, users, starts, out):  # type: ignore[no-untyped-def]
    """Write the first normals of users[i] to starts[i] .. starts[i + 1] - 1 of `out` (float32), less starts[0]."""
    words, numbers = np.empty((4, _GROUP), np.uint32), np.empty(4 * _GROUP, np.float32)
    user, done = 0, 0
    while user < users.size:
        end, rest, held = _next_words(seed, purpose, users, starts, user, done, words)
        for j in range(held):
            a, b = _two_normals(words[0, j], words[1, j])
            c, d = _two_normals(words[2, j], words[3, j])
            numbers[4 * j], numbers[4 * j + 1], numbers[4 * j + 2], numbers[4 * j + 3] = a, b, c, d
        _hand_out(numbers, starts, user, done, end, rest, out)
        user, done = end, rest


@njit(cache=True, nogil=True, error_model="numpy")
def fill_uniforms(seed, purpose, users, starts, out):  # type: ignore[no-untyped-def]
    """The same of uniforms in (0, 1), float64."""
    words, numbers = np.empty((4, _GROUP), np.uint32), np.empty(4 * _GROUP)
    user, done = 0, 0
    while user < users.size:
        end, rest, held = _next_words(seed, purpose, users, starts, user, done, words)
        for j in range(held):
            for k in range(4):
                numbers[4 * j + k] = (words[k, j] + 0.5) * 2.0**-32
        _hand_out(numbers, starts, user, done, end, rest, out)
        user, done = end, rest


Vector = NDArray[np.float64]
Users = NDArray[np.int64]
# A population of users 0 to n - 1, who answer questions: public facts, `items` and `corruption` of any users (k,).
# Items in memory, within the bounds of the loss, are its `all_items`, and are read in place if nothing alters them.
# One that generates items, for several threads at a time, says `generates_items`. One that can be divided has
# `part`: some users (k,), sorted, under the same numbers; one in files has `storage`: the users' order there (n,).
Answering = Union["Synthetic", "TableUsers", "FileUsers"]
# The same with the truth to compare a model with, of files as `truth`.
Population = Union["Synthetic", "TablePopulation", "DatasetPopulation"]


class Corruption(IntEnum):
    """What a simulated user sends instead of an honest answer."""

    HONEST = 0
    SHIFTED = 1  # an honest computation on flipped labels (for means: mirrored items)
    HUGE = 2  # 1e300 in every coordinate
    NAN = 3
    INF = 4
    MISSING = 5  # never answers
    ZERO = 6


@dataclass(frozen=True, slots=True)
class PublicKnowledge:
    """Facts about the distribution that a plan may use to predict risk and choose steps; never for privacy.

    Of a synthetic population they follow from its declared design, not from the drawn items.
    """

    beliefs: Beliefs = field(default_factory=Beliefs)
    user_smoothness: float | None = None  # what nearly every user's average Hessian stays below; None: unknown
    assumptions: tuple[str, ...] = ()  # what a reader must believe for the above, in words


_UNDECLARED = (
    "population.items_per_user is not declared and planned as 1: declare what a user typically holds, for better steps "
    "and, with some methods, less noise."
)


@dataclass(frozen=True, eq=False)
class Declared:
    """What is declared of users whose items nobody has looked at: all that a plan may rest on."""

    users: int  # n, the number of slots
    items_per_user: int  # m
    dimension: int  # numbers of a model
    loss: Loss
    domain: Domain
    knowledge: PublicKnowledge = field(default_factory=PublicKnowledge)

    @classmethod
    def of_rows(
        cls, encoding: "Encoding", loss: Loss, domain: Domain, *, users: int, items_per_user: int | None
    ) -> "Declared":
        """Return what is declared of users whose items are rows of a table; None: one item each."""
        taken = (_UNDECLARED,) if items_per_user is None else ()
        known = PublicKnowledge(Beliefs(intercept=encoding.intercept, groups=encoding.groups), assumptions=taken)
        return cls(users, items_per_user or 1, encoding.dimension * loss.outputs, loss, domain, known)

    def public(self) -> dict[str, Any]:
        """Return these by name, of users of whom more is known too."""
        return {field.name: getattr(self, field.name) for field in fields(Declared)}


OutlierKind = Literal["shifted", "huge", "nan", "inf", "missing", "zero"]


@dataclass(frozen=True, slots=True)
class Outliers:
    """Each user is an outlier with probability `fraction`, independently; what it then does is `kind`."""

    fraction: float = 0.0
    kind: OutlierKind = "shifted"

    def corruption(self, users: Users, *, seed: int) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        shown = np.zeros(len(users), np.uint8)  # HONEST
        if self.fraction > 0:
            draws = uniforms(words(seed=seed, purpose=Purpose.USER, users=users)[:, 0])
            shown[draws < self.fraction] = Corruption[self.kind.upper()]
        return shown


@dataclass(frozen=True, eq=False)
class TabularUsers(Declared):
    """Users of a table, in memory or in files, some of whom may be outliers."""

    outliers: Outliers = field(kw_only=True, default_factory=Outliers)
    seed: int = field(kw_only=True, default=0)

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(np.array(users, np.int64), seed=self.seed)


ALL_HONEST = Outliers()


def flipped(batch: ItemBatch, corruption: NDArray[np.uint8], loss: Loss) -> ItemBatch:
    """Items with those of SHIFTED users mirrored, or their labels; `corruption` is that of each user, (k,)."""
    shifted = np.repeat(corruption == Corruption.SHIFTED, np.diff(batch.offsets))
    if not shifted.any():
        return batch
    if loss.name == "linear":
        return replace(batch, features=np.where(shifted[:, None], -batch.features, batch.features))
    return replace(batch, labels=np.where(shifted, loss.opposite(batch.labels), batch.labels))


def about_boundary(domain: Domain, model: Vector, optimum: Vector, cost: float) -> Iterator[str]:
    """Yield what to do about a model on the boundary of its domain, where the best has an excess risk of `cost`.

    Nothing if it is not there, or belongs there, as the best of a linear loss does.
    """
    if not on_boundary(domain, model):
        return
    size = domain.radius if isinstance(domain, L2Ball) else domain.half_width
    if cost > 0:
        yield (
            f"The model lies on the boundary of its domain (domain.radius = {size:g}), and so does the optimum without "
            f"privacy: the domain is too small for what there is to learn, which costs an excess risk of {cost:.2g} "
            "whatever the noise. Raise domain.radius; of a table that has none a method whose noise does not depend on "
            "it, as `auto` takes, is not bounded."
        )
    elif not on_boundary(domain, optimum):
        yield (
            f"The model lies on the boundary of its domain (domain.radius = {size:g}), where the optimum without "
            "privacy does not: noise has carried it there. Lower domain.radius, raise privacy.epsilon, or have more "
            "users."
        )
