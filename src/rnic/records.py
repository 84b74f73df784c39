# SPDX-License-Identifier: Apache-2.0
"""Records: classes of named fields, like those of `dataclasses`, that cost little until they are used.

    class Thing(Record):
        number: int = 0
        name: str = field(default="", repr=False)

    class Other(Thing, kw_only=True):
        more: int = 0

To programs and to type checkers a record is `@dataclass(frozen=True, slots=True)`; a MutableRecord is not
frozen.  Attributes are mutable records that a program fills in: they answer a misspelt name.

But `dataclass` makes each class twice, and compiles its methods at every start of a program.  Here a class
is made once.  What all records do alike is inherited.  `__init__` is compiled when it is first looked up;
nothing is imported for that.

`dataclasses` itself is imported when a program asks for what is defined there.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from reprlib import recursive_repr
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from rnic.notebook import table

if TYPE_CHECKING:
    from dataclasses import replace  # whose arguments type checkers look at

__all__ = ["Attributes", "Field", "MutableRecord", "Record", "field", "fields", "replace", "values"]

_PACKAGE = __name__.partition(".")[0]


class _Missing:
    def __repr__(self) -> str:
        return "<factory>"  # what a signature shows


_MISSING: Any = _Missing()  # no default; as an argument: what the field's factory makes


class Field:
    """What is known of a field, under the names that `dataclasses.Field` has."""

    __slots__ = ("compare", "default", "default_factory", "kw_only", "metadata", "name", "repr", "type")

    def __init__(
        self,
        default: Any = _MISSING,
        default_factory: Any = _MISSING,
        repr: bool = True,  # noqa: A002 - dataclasses' name
        compare: bool = True,
        kw_only: bool = False,
        metadata: Mapping[Any, Any] | None = None,
    ) -> None:
        self.name, self.type = "", None
        self.default, self.default_factory = default, default_factory
        self.repr, self.compare, self.kw_only = repr, compare, kw_only
        self.metadata = metadata or {}


def field(**described: Any) -> Any:
    """Describe a field, as `dataclasses.field` does, where a default alone does not."""
    return Field(**described)


# ------------------------------------------------------------------------------- the making of a class


class RecordType(type):
    """Gives a class slots for its fields, and keeps in `__record__` what the class statement says of them.

    What a program derives from a record is an ordinary class, which `dataclass` may decorate.
    """

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        space: dict[str, Any],
        kw_only: bool = False,
        weakref_slot: bool = False,
    ) -> Any:
        if space.get("__module__", "").partition(".")[0] == _PACKAGE:
            types = {one: kind for one, kind in _annotations(space).items() if not _of_the_class(kind)}
            space["__record__"] = types, {one: space.pop(one) for one in types if one in space}, kw_only
            space["__slots__"] = (*_new(types, bases), *["__weakref__"] * weakref_slot)
            space.setdefault("__init__", _Unwritten())
        return super().__new__(mcs, name, bases, space)


def _annotations(space: dict[str, Any]) -> dict[str, Any]:
    evaluate = space.get("__annotate_func__")  # from Python 3.14 on, unless they are strings (PEP 649)
    return dict(evaluate(1) if evaluate else space.get("__annotations__", {}))


def _of_the_class(kind: Any) -> bool:
    text = isinstance(kind, str)
    return kind.startswith("ClassVar") if text else getattr(kind, "__origin__", None) is ClassVar


def _new(names: Iterable[str], bases: tuple[type, ...]) -> list[str]:
    """Those of the names that no base has a slot for."""
    slots = {slot for base in bases for one in base.__mro__ for slot in vars(one).get("__slots__", ())}
    return [name for name in names if name not in slots]


class _Unwritten:
    """`__init__` of a class, until it is looked up: then it is written, whole, and takes this one's place."""

    __slots__ = ("_owner",)

    def __set_name__(self, owner: Any, _name: str) -> None:
        self._owner = owner

    def __get__(self, record: object, _owner: object = None) -> Any:
        written = self._owner.__init__ = _written(self._owner)
        return written if record is None else MethodType(written, record)


def _written(cls: Any) -> Any:
    ordered = sorted(fields(cls), key=lambda one: one.kw_only)
    known: dict[str, Any] = {"__default": {one.name: one.default for one in ordered}, "__missing": _MISSING}
    statements = [_statement(cls, one, known) for one in ordered]
    if hasattr(cls, "__post_init__"):
        statements.append("self.__post_init__()")
    head = f"def make({', '.join(known)}):\n def __init__({', '.join(_parameters(ordered))}):\n  "
    text = head + "\n  ".join(statements or ["pass"]) + "\n return __init__"
    made: dict[str, Any] = {}
    exec(text, vars(sys.modules[cls.__module__]), made)
    init = made["make"](**known)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {one.name: one.type for one in ordered} | {"return": None}
    return init


def _statement(cls: Any, one: Field, known: dict[str, Any]) -> str:
    """That gives a field its value; `known` gets the functions that it calls."""
    value = one.name
    if one.default_factory is not _MISSING:
        known[f"__make_{one.name}"] = one.default_factory
        value = f"__make_{one.name}() if {one.name} is __missing else {one.name}"
    if cls.__setattr__ is object.__setattr__:
        return f"self.{one.name} = {value}"
    known[f"__set_{one.name}"] = getattr(cls, one.name).__set__
    return f"__set_{one.name}(self, {value})"


def _parameters(ordered: list[Field]) -> list[str]:
    found = ["self"]
    for one in ordered:
        if one.kw_only and "*" not in found:
            found.append("*")
        required = one.default is one.default_factory is _MISSING
        found.append(one.name if required else f"{one.name}=__default[{one.name!r}]")
    return found


# ------------------------------------------------------------------------------- what its fields are

_FIELDS: dict[type, tuple[Any, ...]] = {}  # by class: worked out at its first use, the same ever after
_COMPARED: dict[type, tuple[str, ...]] = {}  # likewise
_TWINS: dict[type, Any] = {}  # likewise: what `dataclass` makes of the same fields


def fields(of: Any) -> tuple[Any, ...]:
    """What is known of the fields of a record or its class, in their order."""
    cls = of if isinstance(of, type) else type(of)
    known = _FIELDS.get(cls)
    if known is None:
        known = _FIELDS[cls] = _described(cls)
    return known


def _described(cls: type) -> tuple[Any, ...]:
    for one in cls.__mro__:
        if "__record__" in vars(one):
            return _collected(one)
        if "__dataclass_fields__" in vars(one):
            import dataclasses  # a program has, and decorated this class

            return dataclasses.fields(one)
    raise TypeError(f"{cls.__qualname__} is no record")


def _collected(cls: type) -> tuple[Field, ...]:
    """Its own, and those of its bases; one that is described anew keeps its place."""
    found: dict[str, Field] = {}
    for one in reversed(cls.__mro__):
        types, defaults, kw_only = vars(one).get("__record__", ({}, {}, False))
        for name, kind in types.items():
            default = defaults.get(name, _MISSING)
            known = default if isinstance(default, Field) else Field(default)
            known.name, known.type, known.kw_only = name, kind, kw_only or known.kw_only
            found[name] = known
    return tuple(found.values())


def values(record: Any) -> dict[str, Any]:
    """What the fields of a record hold, by their names."""
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _values(record: Any) -> tuple[Any, ...]:
    names = _COMPARED.get(type(record))
    if names is None:
        names = _COMPARED[type(record)] = tuple(one.name for one in fields(record) if one.compare)
    return tuple([getattr(record, name) for name in names])


def _twin(cls: type) -> Any:
    known = _TWINS.get(cls)
    if known is None:
        known = _TWINS[cls] = _make_twin(cls)
    return known


def _make_twin(cls: type) -> Any:
    from dataclasses import field, make_dataclass

    alike = []
    for one in fields(cls):
        known = {name: getattr(one, name) for name in Field.__slots__ if name not in ("name", "type")}
        given = {name: value for name, value in known.items() if value is not _MISSING}
        alike.append((one.name, one.type, field(**given)))
    return make_dataclass(cls.__name__, alike, frozen=issubclass(cls, Record), slots=True)


class _Told:
    """An attribute of a class that is worked out when it is looked up."""

    def __init__(self, work: Callable[[type], Any]) -> None:
        self._work = work

    def __get__(self, _record: object, cls: type) -> Any:
        return self._work(cls)


_the_fields = _Told(lambda cls: _twin(cls).__dataclass_fields__)
_the_params = _Told(lambda cls: _twin(cls).__dataclass_params__)
_match_args = _Told(lambda cls: tuple(one.name for one in fields(cls) if not one.kw_only))


def _signature(cls: Any) -> Any:
    from inspect import signature

    found = signature(cls.__init__)
    return found.replace(parameters=list(found.parameters.values())[1:])


# ------------------------------------------------------------------------------- what all have


_HEXADECIMAL = ("guid", "key", "addr")  # how the names of fields end whose numbers mean nothing to people


def _shown(record: Any, name: str) -> str:
    value = getattr(record, name)
    return hex(value) if type(value) is int and name.endswith(_HEXADECIMAL) else repr(value)


class _Common:
    __slots__ = ()

    @recursive_repr()
    def __repr__(self) -> str:
        shown = (f"{one.name}={_shown(self, one.name)}" for one in fields(self) if one.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        shown = [(one.name, getattr(self, one.name)) for one in fields(self) if one.repr]
        return table(type(self).__qualname__, shown)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    def __getstate__(self) -> list[Any]:
        return list(values(self).values())

    def __setstate__(self, state: list[Any]) -> None:
        for one, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, one.name, value)

    def __replace__(self, **changes: Any) -> Any:  # copy.replace() of Python 3.13
        return type(self)(**values(self) | changes)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(_Common, metaclass=RecordType):
    """A frozen dataclass with slots, to programs and type checkers."""

    if not TYPE_CHECKING:  # they know these of every dataclass
        __dataclass_fields__, __dataclass_params__, __match_args__ = _the_fields, _the_params, _match_args

    def __hash__(self) -> int:
        return hash(_values(self))

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(self, "assign to", name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _refuse(self, "delete", name)
        super().__delattr__(name)


def _refuse(record: Record, deed: str, name: str) -> None:
    """FrozenInstanceError, unless a class that a program derived has such an attribute."""
    if "__record__" in vars(type(record)) or name in [one.name for one in fields(record)]:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {deed} field {name!r}")


@dataclass_transform(field_specifiers=(field,))
class MutableRecord(_Common, metaclass=RecordType):
    """A dataclass with slots, to programs and type checkers."""

    if not TYPE_CHECKING:
        __dataclass_fields__, __dataclass_params__, __match_args__ = _the_fields, _the_params, _match_args


class _Fillable(RecordType):
    """Its records are made by keywords that may be misspelt."""

    if not TYPE_CHECKING:  # they take the arguments of `__init__`

        def __call__(cls, *args, **given):
            try:
                return super().__call__(*args, **given)
            except TypeError as error:
                hints = [_hint(cls, name) for name in given if f"argument {name!r}" in str(error)]
                if not any(hints) or "Did you mean" in str(error):  # which Python 3.13 says itself
                    raise
                raise TypeError(f"{error}{hints[0]}") from None


class Attributes(MutableRecord, metaclass=_Fillable):
    """A MutableRecord that a program fills in, attribute by attribute: it answers a misspelt name."""

    if not TYPE_CHECKING:  # they would take any name
        __signature__ = _Told(_signature)  # not that of `__call__`

        def __setattr__(self, name, value):
            try:
                super().__setattr__(name, value)
            except AttributeError as error:
                raise AttributeError(f"{error}{_hint(type(self), name)}") from None


def _hint(cls: type, name: str) -> str:
    """The field whose name is like that one, as an end of a message; nothing if none is."""
    from difflib import get_close_matches

    near = get_close_matches(name, [one.name for one in fields(cls)], 1)
    return f". Did you mean {near[0]!r}?" if near else ""


if not TYPE_CHECKING:

    def replace(record, /, **changes):
        """The same record with some values changed, as `dataclasses.replace` makes it."""
        return record.__replace__(**changes)
