"""Records beside `typing.NamedTuple`, whose meaning they have."""

import copy
import pickle
from typing import NamedTuple

import pytest
from infinicore.kernels.record import Record


class Place(Record):
    """Where something is."""

    row: int
    column: int
    name: str = "here"
    size: tuple = (1, 1)

    @property
    def area(self):
        return self.size[0] * self.size[1]


class Named(NamedTuple):
    row: int
    column: int
    name: str = "here"
    size: tuple = (1, 1)


class Single(Record):
    value: int


def test_records_are_made_as_named_tuples():
    for args, kwargs in [((1, 2), {}), ((1,), {"column": 3}), ((1, 2, "x", (2, 3)), {}), ((), dict(column=1, row=2))]:
        assert tuple(Place(*args, **kwargs)) == tuple(Named(*args, **kwargs))
    for args, kwargs in [((), {}), ((1,), {}), ((1, 2, 3, 4, 5), {}), ((1, 2), {"row": 1}), ((1, 2), {"other": 1})]:
        with pytest.raises(TypeError) as ours:
            Place(*args, **kwargs)
        with pytest.raises(TypeError) as theirs:
            Named(*args, **kwargs)
        assert str(ours.value) == str(theirs.value).replace("Named", "Place")
    assert Single(5).value == 5 and Single(5) == (5,)


def test_what_records_have_of_tuples():
    place = Place(1, 2, size=(2, 3))
    row, column, name, size = place
    assert (row, column, name, size) == place == (1, 2, "here", (2, 3)) and place.area == 6
    assert hash(place) == hash(tuple(place)) and place < Place(1, 3) and place[1:3] == (2, "here")
    assert repr(place) == "Place(row=1, column=2, name='here', size=(2, 3))"
    assert Place._fields == Named._fields and Place.__doc__ == "Where something is."
    assert isinstance(place, tuple) and not hasattr(place, "__dict__")
    with pytest.raises(AttributeError):
        place.row = 3


def test_records_are_replaced_copied_and_pickled():
    place = Place(1, 2)
    changed = place._replace(column=5, name="there")
    assert type(changed) is Place and changed == (1, 5, "there", (1, 1)) and place == (1, 2, "here", (1, 1))
    with pytest.raises(ValueError, match="no field 'width'"):
        place._replace(width=1)
    for other in (copy.copy(place), copy.deepcopy(place), pickle.loads(pickle.dumps(place))):
        assert type(other) is Place and other == place
    match place:
        case Place(row, column):
            assert (row, column) == (1, 2)


def test_defaults_come_last():
    with pytest.raises(TypeError, match="must follow"):

        class Wrong(Record):
            first: int = 1
            second: int
