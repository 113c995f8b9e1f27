"""Members are drawn from the active users, by public randomness that anybody can draw again; keys may follow keys."""

import hashlib

import numpy as np
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from quoron_client.protocol import rotation
from quoron_privacy.errors import ConfigError
from quoron_server.books import roster as module
from quoron_server.books.backup import back_up, read
from quoron_server.books.database import Database
from quoron_server.books.drawing import by_client, draw, homes, seed_of
from quoron_server.books.registry import Registry
from quoron_server.books.restoring import restore
from quoron_server.books.roster import DAY
from quoron_server.books.roster_tables import NAMES, STANDING, RotatedKey

one_kind = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # of database: what SQL says is not asked


def enrolled(registry, *names, group="everyone"):
    return [registry.enrol(f"key of {name}", group, name=name, software="quoron 1") for name in names]


def states(registry, **which):
    return {user.name: user.state for user in registry.roster.page(**which)}


def drawn_slowly(seed, active, n):
    ranked = sorted(active, key=lambda user: hashlib.sha256(f"{seed} {user}".encode()).hexdigest())
    return sorted(ranked[:n])


@given(users=st.sets(st.integers(0, 10**6), min_size=1, max_size=40), data=st.data())
def test_whoever_draws_again_gets_the_same_members(users, data):
    n, seed = data.draw(st.integers(1, len(users))), seed_of(data.draw(st.text(max_size=5)), "{}")
    active = np.array(sorted(users))
    assert draw(seed, active, n).tolist() == drawn_slowly(seed, users, n)
    assert draw(seed, active, len(users)).tolist() == sorted(users)


def test_everybody_is_drawn_equally_often():
    """Of 40,000 draws of 3 in 10 each user is in 12,000: farther than 600 by chance with less than 10⁻⁸ in all."""
    active = np.arange(10) * 7
    counts = np.zeros(64, int)
    for number in range(40_000):
        counts[draw(seed_of(str(number), ""), active, 3)] += 1
    assert np.all(np.abs(counts[active] - 12_000) < 600)


@one_kind
def test_who_was_not_seen_is_away_and_back_when_it_connects(registry, clock):
    enrolled(registry, "ada", "ben")
    clock.now += 6.9 * DAY
    assert states(registry, state="active") == {"ada": "active", "ben": "active"}
    enrolled(registry, "ben")
    clock.now += 0.5 * DAY  # beyond seven days, and the step in which it is kept
    assert states(registry) == {"ada": "away", "ben": "active"}
    assert states(registry, state="away") == {"ada": "away"}
    assert registry.roster.standing("everyone") == module.Standing(active=1, away=1, retired=0)
    enrolled(registry, "ada")
    assert states(registry, state="active") == {"ada": "active", "ben": "active"}


@one_kind
def test_what_the_operator_says_stands_until_it_says_otherwise(registry, clock):
    enrolled(registry, "ada", "ben", "cem")
    registry.roster.away(0)
    registry.roster.retire([1])
    for _ in "ab":
        enrolled(registry, "ada", "ben", "cem")  # connecting changes nothing of it
        assert states(registry) == {"ada": "away", "ben": "retired", "cem": "active"}
        clock.now += 30 * DAY
    assert registry.roster.active("everyone").tolist() == []
    with pytest.raises(ConfigError, match="active or away, got user 1, retired: by its operator"):
        registry.roster.away(1)
    enrolled(registry, "ada", "ben", "cem")
    registry.roster.back(0)
    registry.roster.back(1)
    assert set(states(registry).values()) == {"active"}


def test_a_user_is_found_by_number_name_or_fingerprint_and_never_guessed(registry):
    enrolled(registry, "ada", "ben", "eve")
    registry.enrol("0123456789abcdef", name="eve")
    assert [registry.roster.find(word).user for word in ("1", "ada", "key of ben", "01234567")] == [1, 0, 1, 3]
    with pytest.raises(ConfigError, match="'eve', which several have: 2, 3"):
        registry.roster.find("eve")
    for word in ("dan", "9", "0123456", "", "-1", "²"):
        with pytest.raises(ConfigError, match="Expected a user's number, name or fingerprint"):
            registry.roster.find(word)


@one_kind
def test_a_seat_goes_to_another_user_of_the_group_and_does_not_come_back(registry):
    old, new, other = enrolled(registry, "old", "new", "other")
    (far,) = enrolled(registry, "far", group="clinics")
    registry.roster.away(new)
    registry.roster.replace(old, new)
    registry.roster.replace(old, new)
    assert states(registry, group="everyone") == {"old": "retired", "new": "active", "other": "active"}
    with pytest.raises(ConfigError, match="replaced by user 1"):
        registry.roster.back(old)
    for wrong, words in (((other, far), "one group"), ((other, old), "not retired"), ((new, new), "twice")):
        with pytest.raises(ConfigError, match=words):
            registry.roster.replace(*wrong)


@one_kind
def test_whoever_lost_a_seat_or_was_revoked_is_not_active_again_by_a_second_word(registry):
    replaced, new, revoked = enrolled(registry, "old", "new", "lost")
    registry.roster.replace(replaced, new)
    registry.roster.retire_keys(["key of lost"])
    registry.roster.retire([replaced, revoked])
    with pytest.raises(ConfigError, match="replaced by user 1"):
        registry.roster.back(replaced)
    with pytest.raises(ConfigError, match="a key that was never revoked"):
        registry.roster.rotate("key of lost", "thief", "{}")
    assert registry.roster.active("everyone").tolist() == [new]


def test_a_rotated_key_is_the_same_user_and_the_old_one_is_nobodys(registry):
    old, _ = enrolled(registry, "ada", "ben")
    registry.add_run("summer", "{}")
    registry.fix_members("summer", 2)
    registry.note_agreed("summer", [old], epsilon=1.0, delta=1e-6)
    for _ in "ab":
        assert registry.roster.rotate("key of ada", "newer", "{}") == (old, None)
    assert registry.enrol("newer") == old
    assert registry.user("key of ada") is None
    assert registry.agreed(old, 9) == [("summer", 1.0, 1e-6)]
    with pytest.raises(RotatedKey, match="user 0 has put another in the place of"):
        registry.enrol("key of ada")
    with pytest.raises(RotatedKey):  # nor does it come back
        registry.roster.rotate("newer", "key of ada", "{}")
    assert registry.roster.rotate("newer", "newest", "{}") == (old, None)
    with pytest.raises(ConfigError, match="which user 0 has put another in the place of"):
        registry.roster.rotate("key of ada", "thief", "{}")
    with pytest.raises(ConfigError, match="Expected the key of a user, got nobody"):
        registry.roster.rotate("nobody", "thief", "{}")


@one_kind
def test_a_revoked_key_signs_for_nobody(registry):
    enrolled(registry, "ada")
    registry.roster.retire_keys(["key of ada"])
    with pytest.raises(ConfigError, match="a key that was never revoked, got that of user 0"):
        registry.roster.rotate("key of ada", "thief", "{}")
    assert registry.user("key of ada") == 0


def test_one_key_written_in_two_ways_is_no_rotation(tmp_path, monkeypatch):
    """A point of a curve may be written short; certificates are told apart by the long form."""
    key, path = ec.generate_private_key(ec.SECP256R1()), tmp_path / "ada.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    whole = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    kind = whole[2 : 4 + whole[3]] + b"\x03" + bytes([1 + len(point)]) + b"\0" + point
    short = b"\x30" + bytes([len(kind)]) + kind
    assert load_der_public_key(short) == key.public_key()
    written = iter((whole, short))
    with monkeypatch.context() as patched:
        patched.setattr(rotation, "_encoded", lambda _: next(written))
        text = rotation.sign(path, path)
    with pytest.raises(ConfigError, match="Expected a rotation"):
        rotation.check(text)


def test_a_new_key_that_was_enrolled_already_is_joined_unless_it_was_in_a_run(registry):
    old, new, third = enrolled(registry, "ada", "ada again", "ben")
    assert registry.roster.rotate("key of ada", "key of ada again", "{}") == (old, new)
    assert registry.enrol("key of ada again") == old
    assert states(registry) == {"ada": "active", "ada again": "retired", "ben": "active"}
    with pytest.raises(ConfigError, match="its key is another user's now"):
        registry.roster.back(new)
    registry.add_run("summer", "{}")
    registry.fix_members("summer", 2)
    with pytest.raises(ConfigError, match="a new key that was in no run, got that of user 2"):
        registry.roster.rotate("key of ada again", "key of ben", "{}")
    assert registry.enrol("key of ben") == third


def test_a_backup_of_an_earlier_version_and_of_this_one_are_put_back(registry, tmp_path):
    database = registry._database
    enrolled(registry, "ada", "ben")
    registry.roster.rotate("key of ada", "newer", "signed")
    registry.roster.retire([1])
    registry.add_run("summer", "{}")
    registry.fix_members("summer", 1)
    back_up(database, tmp_path / "new")
    with database.writing() as connection:
        for index in (STANDING, NAMES):
            index.drop(connection)
        for column in ("name", "software", "state", "why", "seen", "people"):
            connection.execute(sa.text(f"ALTER TABLE users DROP COLUMN {column}"))
    back_up(database, tmp_path / "old")
    assert set(read(tmp_path / "old").rows["users"][0]) == {"user", "fingerprint", "group", "enrolled_at"}
    for name, state in (("old", "active"), ("new", "retired")):
        url = f"sqlite:///{tmp_path}/{name}.sqlite"
        restore(tmp_path / name, url)
        with Database(url) as restored:
            again = Registry(restored)
            assert [user.state for user in again.roster.page()] == ["active", state]
            assert again.roster.find("1").state == state
            assert again.roster.rotations()[0]["statement"] == "signed"
            assert again.drawn("summer").active.tolist() == [0]


def enrolled_silos(registry, **people):
    return [registry.enrol(f"key of {name}", name=name, people=each) for name, each in people.items()]


def test_its_people_have_the_numbers_that_follow_its_own(registry):
    assert enrolled_silos(registry, ada=1, north=300, ben=1, south=2) == [0, 1, 301, 302]
    assert enrolled_silos(registry, north=300, ada=1) == [1, 0], "again is the same"
    assert registry.users_count() == 304
    assert registry.roster.silos() == {1: 300, 302: 2}
    np.testing.assert_array_equal(registry.roster.active("everyone"), np.arange(304))
    found = homes(np.array([0, 1, 150, 300, 301, 302, 303, 304]), registry.roster.silos())
    assert found.tolist() == [0, 1, 1, 1, 301, 302, 302, 304]


def test_members_are_drawn_over_persons_and_each_has_a_slot(registry):
    enrolled_silos(registry, ada=1, north=300, south=200)
    registry.add_run("summer", "{}")
    members = registry.fix_members("summer", 100)
    expected = draw(seed_of("summer", "{}"), np.arange(501), 100)
    np.testing.assert_array_equal(members, expected)
    assert registry.called(members[[0, -1]].tolist()) == ["north (300 people)", "south (200 people)"]
    registry.set_state("summer", "complete")
    assert registry.ended_with(1, 10) == [("summer", "complete")], "once, not once a person"
    assert registry.shared(1, 301) == 1


def test_rows_of_a_cohort_are_by_client_in_the_order_of_their_persons():
    users, silos = np.array([9, 3, 0, 12, 5, 4, 1]), {3: 4, 9: 4}
    slow = {}
    for place, user in sorted(enumerate(users.tolist()), key=lambda each: each[1]):
        home = next((first for first, people in silos.items() if first <= user < first + people), user)
        slow.setdefault(home, []).append(place)
    found = {client: rows.tolist() for client, rows in by_client(users, silos).items()}
    assert found == slow
    assert {client: rows.tolist() for client, rows in by_client(users, {}).items()} == {
        user: [place] for place, user in enumerate(users.tolist())
    }
