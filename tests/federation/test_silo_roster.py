"""A silo is one row of the roster and as many users: each has a number for ever, and what is said of one is of all."""

import numpy as np

from quoron_server.books.drawing import by_client, draw, homes, seed_of


def enrolled(registry, **people):
    return [registry.enrol(f"key of {name}", name=name, people=each) for name, each in people.items()]


def test_its_people_have_the_numbers_that_follow_its_own(registry):
    assert enrolled(registry, ada=1, north=300, ben=1, south=2) == [0, 1, 301, 302]
    assert enrolled(registry, north=300, ada=1) == [1, 0], "again is the same"
    assert registry.users_count() == 304
    assert registry.roster.silos() == {1: 300, 302: 2}
    np.testing.assert_array_equal(registry.roster.active("everyone"), np.arange(304))
    found = homes(np.array([0, 1, 150, 300, 301, 302, 303, 304]), registry.roster.silos())
    assert found.tolist() == [0, 1, 1, 1, 301, 302, 302, 304]


def test_members_are_drawn_over_persons_and_each_has_a_slot(registry):
    enrolled(registry, ada=1, north=300, south=200)
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
