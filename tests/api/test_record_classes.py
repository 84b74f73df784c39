# SPDX-License-Identifier: Apache-2.0
"""A record is a dataclass to all who use it: it is held against what `dataclass` makes of the same fields."""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib
import inspect
import pickle
import pkgutil
import pydoc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import pytest

import rnic
from rnic import records
from rnic.records import MutableRecord, Record, RecordType, field

MODULE = f"{records.__name__}.tests"  # records are what rnic's own modules define


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, sys.modules[__name__])


class Plain(Record):
    """Of all kinds of fields."""

    __module__ = MODULE
    KIND: ClassVar[int] = 7

    number: int
    name: str = "a"
    many: list[int] = field(default_factory=list, compare=False)
    secret: str = field(default="b", repr=False)
    last: int | None = field(default=None, kw_only=True, metadata={"unit": "bytes"})


@dataclasses.dataclass(frozen=True, slots=True)
class PlainTwin:
    """Of all kinds of fields."""

    KIND: ClassVar[int] = 7

    number: int
    name: str = "a"
    many: list[int] = dataclasses.field(default_factory=list, compare=False)
    secret: str = dataclasses.field(default="b", repr=False)
    last: int | None = dataclasses.field(default=None, kw_only=True, metadata={"unit": "bytes"})


class Derived(Plain):
    """Tells one field anew, and adds one."""

    __module__ = MODULE
    name: str = "c"
    more: float = 1.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", self.more * 2)


@dataclasses.dataclass(frozen=True, slots=True)
class DerivedTwin(PlainTwin):
    """Tells one field anew, and adds one."""

    name: str = "c"
    more: float = 1.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", self.more * 2)


class Named(Plain, kw_only=True):
    """By keyword alone, after those that are not; it can be referred to weakly."""

    __module__ = MODULE
    other: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamedTwin(PlainTwin):
    """By keyword alone, after those that are not; it can be referred to weakly."""

    other: int


class Referred(Record, weakref_slot=True):
    """It can be referred to weakly."""

    __module__ = MODULE
    value: object = None


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True)
class ReferredTwin:
    """It can be referred to weakly."""

    value: object = None


class Empty(Record):
    """Of nothing."""

    __module__ = MODULE


@dataclasses.dataclass(frozen=True, slots=True)
class EmptyTwin:
    """Of nothing."""


class Changing(MutableRecord):
    """It may change."""

    __module__ = MODULE
    number: int
    many: list[int] = field(default_factory=list)


@dataclasses.dataclass(slots=True)
class ChangingTwin:
    """It may change."""

    number: int
    many: list[int] = dataclasses.field(default_factory=list)


PAIRS: list[tuple[Any, Any]] = [
    (Plain, PlainTwin),
    (Derived, DerivedTwin),
    (Named, NamedTwin),
    (Referred, ReferredTwin),
    (Empty, EmptyTwin),
    (Changing, ChangingTwin),
]
both = pytest.mark.parametrize(("cls", "twin"), PAIRS, ids=lambda cls: cls.__name__)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((), {"number": 1, "last": 3}),
    ((1,), {"other": 3}),
    ((1, "x", [2], "y"), {}),
    ((1, "x", [2], "y", 3), {}),
    ((1, "x", [2], "y", 3, 4), {}),
    ((1,), {"number": 1}),
    ((1,), {"nobody": 1}),
]


def said(thing: Callable[[], object]) -> str:
    """What comes of it, in a text without the names of the classes."""
    try:
        text = repr(thing())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return text.replace("Twin", "")


@both
@pytest.mark.parametrize(("places", "names"), CALLS)
def test_it_is_called_alike(cls: Any, twin: Any, places: Any, names: Any) -> None:
    assert said(lambda: cls(*places, **names)) == said(lambda: twin(*places, **names))


@both
def test_it_is_described_alike(cls: Any, twin: Any) -> None:
    assert str(inspect.signature(cls)) == str(inspect.signature(twin))
    assert str(inspect.signature(cls, eval_str=True)) == str(inspect.signature(twin, eval_str=True))
    assert cls.__init__.__qualname__ == f"{cls.__qualname__}.__init__"
    assert cls.__init__.__annotations__ == twin.__init__.__annotations__
    assert cls.__match_args__ == twin.__match_args__
    assert cls.__slots__ == twin.__slots__
    assert is_dataclass(cls)
    assert not hasattr(object.__new__(cls), "__dict__")
    theirs = [repr(one) for one in dataclasses.fields(twin)]
    assert [repr(one) for one in dataclasses.fields(cls)] == theirs
    assert cls.__dataclass_params__.frozen == twin.__dataclass_params__.frozen
    assert squeezed(f"__init__{inspect.signature(cls.__init__)}") in squeezed(
        pydoc.plain(pydoc.render_doc(cls))
    )


def squeezed(text: str) -> str:
    return re.sub(r"[\s|]", "", text)


def is_dataclass(thing: object) -> bool:  # nothing more for mypy to conclude from
    return dataclasses.is_dataclass(thing)


def given(cls: Any) -> Any:
    return cls(**{name: number for number, name in enumerate(("number", "other")) if name in names(cls)})


def names(cls: Any) -> list[str]:
    return [one.name for one in dataclasses.fields(cls)]


@both
def test_dataclasses_functions_know_it(cls: Any, twin: Any) -> None:
    one, other = given(cls), given(twin)
    assert is_dataclass(one)
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert dataclasses.astuple(one) == dataclasses.astuple(other)
    for name in [*names(cls), "nobody"]:
        changed = {name: 4}
        assert said(lambda: dataclasses.replace(one, **changed)) == said(  # noqa: B023 - called at once
            lambda: dataclasses.replace(other, **changed)  # noqa: B023
        )
    if names(cls):
        assert records.replace(one, **{names(cls)[0]: 4}) == dataclasses.replace(one, **{names(cls)[0]: 4})
    assert records.values(one) == {name: getattr(other, name) for name in names(twin)}
    if sys.version_info >= (3, 13):
        assert copy.replace(one) == dataclasses.replace(one)


@both
def test_it_is_compared_and_shown_alike(cls: Any, twin: Any) -> None:
    one, other = given(cls), given(twin)
    assert repr(one) == repr(other).replace("Twin", "")
    assert one == given(cls)
    assert one != other
    assert said(lambda: hash(one)) == said(lambda: hash(other))
    for name in names(cls):
        values = {**records.values(given(cls)), name: 9}
        changed = {key: value for key, value in values.items() if cls is not Derived or key != "more"}
        assert (cls(**changed) == one) == (twin(**changed) == other)


@both
def test_it_is_frozen_alike(cls: Any, twin: Any) -> None:
    for name in names(cls):
        one, other = given(cls), given(twin)
        assert said(lambda: setattr(one, name, 1)) == said(lambda: setattr(other, name, 1))  # noqa: B023
        assert said(lambda: delattr(one, name)) == said(lambda: delattr(other, name))  # noqa: B023
    with pytest.raises(AttributeError):
        given(cls).nobody = 1


@both
def test_it_is_copied_and_pickled(cls: Any, twin: Any) -> None:
    one = given(cls)
    for made in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert made == one
        assert type(made) is cls
    if cls is not Changing:
        assert one.__getstate__() == given(twin).__getstate__()


def test_a_pattern_takes_it_apart() -> None:
    match Plain(1, "x", last=5):
        case Plain(number, name, last=last):
            assert (number, name, last) == (1, "x", 5)
        case _:
            pytest.fail("no match")


def test_it_is_referred_to_weakly_where_it_says_so() -> None:
    one = Referred()
    assert weakref.ref(one)() is one
    with pytest.raises(TypeError, match="cannot create weak reference"):
        weakref.ref(Plain(1))


def test_a_factory_makes_one_for_each() -> None:
    assert Plain(1).many is not Plain(1).many


def test_annotations_that_are_evaluated_late() -> None:
    """Those of Python 3.14 (PEP 649), where no module says `from __future__ import annotations`."""
    space = {"__module__": MODULE, "__annotate_func__": lambda _form: {"number": int, "SIZE": ClassVar[int]}}
    late: Any = RecordType("Late", (Record,), {**space, "number": 3, "SIZE": 4})
    assert (repr(late()), late.SIZE, names(late)) == ("Late(number=3)", 4, ["number"])


# -------------------------------------------------------------------- all that rnic has


def every() -> list[type[Any]]:
    for one in pkgutil.walk_packages(rnic.__path__, "rnic."):
        if not one.name.endswith("__main__"):
            importlib.import_module(one.name)
    above: list[type[Any]] = [Record, MutableRecord]
    found = []
    while above:
        below = above.pop().__subclasses__()
        above += below
        found += [one for one in below if one.__module__.startswith("rnic.") and one.__module__ != MODULE]
    return sorted(found, key=lambda one: (one.__module__, one.__name__))


@pytest.mark.parametrize("cls", every(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_record_is_what_dataclass_makes(cls: type[Any]) -> None:
    fields = dataclasses.fields(cls)
    named = ("default", "default_factory", "repr", "compare", "kw_only")
    alike = [(f.name, f.type, dataclasses.field(**{n: getattr(f, n) for n in named})) for f in fields]
    twin: Any = dataclasses.make_dataclass(cls.__qualname__, alike, frozen=issubclass(cls, Record))
    if cls.__name__ != "FlatHeader":  # has its own
        assert str(inspect.signature(cls)) == str(inspect.signature(twin))
    values = {f.name: f"value of {f.name}" for f in fields}
    one = filled(cls, values)
    for changed in ("", *values):
        others = values | ({changed: "another"} if changed else {})
        other = filled(cls, others)
        if "__repr__" not in vars(cls):
            assert repr(other) == repr(twin(**others))
        assert said(lambda: hash(other)) == said(lambda: hash(twin(**others)))  # noqa: B023 - called at once
        assert (one == other) == (twin(**values) == twin(**others))
        if changed and issubclass(cls, Record):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(one, changed, None)
    assert one != twin(**values)
    assert one != tuple(values.values())


def filled(cls: type[Any], values: dict[str, str]) -> Any:
    """One with any values at all: what they may be is not asked here."""
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def test_a_record_in_itself_has_a_text() -> None:
    inside: list[object] = []
    attr = rnic.QPInitAttr(qp_context=inside)
    inside.append(attr)
    assert "qp_context=[...]" in repr(attr)


# -------------------------------------------------------------------- what programs derive


@pytest.mark.parametrize("slots", [False, True])
def test_a_program_may_derive_a_dataclass(slots: bool) -> None:
    @dataclasses.dataclass(frozen=True, slots=slots)  # type: ignore[literal-required]
    class Mine(rnic.ECE):
        more: int = 0
        hidden: int = dataclasses.field(default=5, repr=False)

    class Further(Mine):
        pass

    for cls in (Mine, Further):
        assert cls(more=1) == cls(more=1) != cls(more=2)
        assert cls() != rnic.ECE()
        assert repr(cls()).endswith("comp_mask=0, more=0)")
        assert records.replace(cls(hidden=3), more=4) == cls(hidden=3, more=4)
        assert records.values(cls())["hidden"] == 5
        assert len(dataclasses.fields(cls)) == len(dataclasses.fields(rnic.ECE)) + 2
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls().more = 3  # type: ignore[misc]


def test_a_program_may_derive_any_class() -> None:
    class Mine(rnic.ECE):
        def __init__(self, both: int) -> None:
            super().__init__(both, options=both)
            self.__dict__["calls"] = 0

        @property
        def calls(self) -> int:
            return int(self.__dict__["calls"])

    mine = Mine(3)
    assert (mine.vendor_id, mine.options, mine.comp_mask, mine.calls) == (3, 3, 0, 0)
    assert Mine(3) == mine != Mine(4)
    assert Mine(3) != rnic.ECE(3, 3)
    assert dataclasses.asdict(mine) == dataclasses.asdict(rnic.ECE(3, 3))
    mine.anything = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine.options = 1  # type: ignore[misc]


def test_a_program_may_derive_from_attributes() -> None:
    @dataclasses.dataclass
    class Mine(rnic.QPCap):
        more: int = 0

    mine = Mine(max_send_wr=1, more=2)
    mine.max_send_wr, mine.more = 3, 4
    assert mine == Mine(3, more=4) != rnic.QPCap(3)
    assert repr(mine).endswith("max_inline_data=256, more=4)")
    with pytest.raises(TypeError, match="Did you mean 'max_send_wr'"):
        Mine(max_sendwr=1)  # type: ignore[call-arg]


# -------------------------------------------------------------------- the first of a class


def test_threads_may_make_the_first_at_once() -> None:
    for _ in range(50):
        cls: Any = RecordType("First", (Record,), first())
        begin = threading.Barrier(4)
        made: list[Any] = []

        def make(cls: Any = cls, begin: threading.Barrier = begin, made: list[Any] = made) -> None:
            begin.wait()
            made.append(cls(1, more=[2]))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [cls(1, more=[2])] * 4


def first() -> dict[str, Any]:
    types = {"number": "int", "more": "list[int]"}
    return {"__module__": MODULE, "__annotations__": types, "more": field(default_factory=list)}


class Shortage:
    """MemoryError instead of the nth call that is made for a first record."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def profile(self, _frame: FrameType, event: str, called: object) -> None:
        if event in ("call", "c_call") and called is not sys.setprofile:
            self.left -= 1
            if not self.left:
                raise MemoryError


@pytest.mark.parametrize("base", [Record, MutableRecord])
@pytest.mark.parametrize(
    "use", [lambda cls: cls(1, [2]), lambda cls: cls.__init__, lambda cls: cls.__match_args__]
)
def test_where_memory_is_short_nothing_half_made_remains(base: Any, use: Callable[[Any], Any]) -> None:
    nth, met = 0, True
    while met:
        nth += 1
        cls = RecordType("First", (base,), first())
        shortage = Shortage(nth)
        sys.setprofile(shortage.profile)
        try:
            use(cls)
        except MemoryError:
            pass
        else:
            met = False
        finally:
            sys.setprofile(None)
        gc.collect(0)
        assert repr(cls(1, [2])) == "First(number=1, more=[2])"
        assert cls(1).more == []
        assert cls.__match_args__ == ("number", "more")
    assert nth > 3


NOTHING_IMPORTED = """
import sys
import rnic, rnic.records as records
class Blind:
    def find_spec(self, name, path=None, target=None):
        raise AssertionError(name)
sys.meta_path.insert(0, Blind())
assert rnic.ECE(1).as_struct()
for one in (records.replace(rnic.Lose(5), nth=3), rnic.QPInitAttr(qp_context=3)):
    repr(one), one == rnic.QPInitAttr(), records.values(one)
hash(rnic.Lose(5))
"""


def test_the_first_imports_nothing() -> None:
    subprocess.run([sys.executable, "-c", NOTHING_IMPORTED], check=True)
