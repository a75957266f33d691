"""
Typed settings: a class for each role, with one L{ConfigKey} for each key of its property file.

A key is declared once. The reader, the reference page and the tests of the sample files all use
that declaration. The Python name is the key in camelCase: C{log.file.size} is C{logFileSize}, in
the key's own unit.

L{Settings.fromProperties} reports every mistake in a file at once, each with its line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, overload

from pylogbroker.config.properties import Properties
from pylogbroker.config.propertytypes import PropertyType, Warn
from pylogbroker.errors import ConfigurationError

T = TypeVar("T")


class ReferencedKey(Protocol):
    """A L{ConfigKey}, declared earlier, as another one refers to it."""

    key: str
    name: str


@dataclass(eq=False)
class ConfigKey(Generic[T]):
    """
    One key of a property file, and the attribute of a L{Settings} object that holds its value.

    @ivar key: the key in the property file.
    @ivar type: the type of the value, with its range.
    @ivar default: the default, as text in a property file; L{None} if the key is required, or if
        another key gives the value.
    @ivar doc: the meaning, for operators.
    @ivar isKafkaKey: true if Kafka 0.7 has the key, with this meaning.
    @ivar isEffective: false if the key is accepted and ignored.
    @ivar isRequired: true if the file must give the key.
    @ivar derived: the source of a derived default, as Markdown for the reference page.
    @ivar fallback: an earlier key, whose value is the default.
    @ivar isPrefix: whether it stands for all keys that begin with it; the value is the texts of
        these keys, by what follows.
    @ivar least: an earlier key, whose value is the smallest: the default rises to it, and a smaller
        value in the file is an error.
    """

    key: str
    type: PropertyType[T]
    default: str | None
    doc: str
    _: KW_ONLY
    isKafkaKey: bool = True
    isEffective: bool = True
    isRequired: bool = False
    derived: str = ""
    fallback: ReferencedKey | None = None
    least: ReferencedKey | None = None
    isPrefix: bool = False

    def __post_init__(self) -> None:
        if self.fallback is not None:
            self.derived = f"`{self.fallback.key}`"
        elif self.least is not None:
            self.derived = f"`{self.default}`, or `{self.least.key}` if that is more"

    def __set_name__(self, owner: object, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: object) -> ConfigKey[T]: ...

    @overload
    def __get__(self, instance: object, owner: object) -> T: ...

    def __get__(self, instance: object, owner: object) -> ConfigKey[T] | T:
        """The key itself, on the class. An instance holds the value in its C{__dict__}."""
        if instance is None:
            return self
        raise AttributeError(self.name)


def ownKey(
    key: str, type: PropertyType[T], default: str | None, doc: str, **options: Any
) -> ConfigKey[T]:
    """A key that Kafka 0.7 does not have."""
    return ConfigKey(key, type, default, doc, isKafkaKey=False, **options)


def ignoredKey(key: str, type: PropertyType[T], default: str | None, doc: str) -> ConfigKey[T]:
    """A key of Kafka 0.7 that has no effect here."""
    return ConfigKey(key, type, default, doc, isEffective=False)


class Settings:
    """
    The settings of one role: immutable values by the names of the class's keys.

    @cvar keys: inherited and own keys, in the order of their declaration. A key that a subclass
        declares again replaces the inherited one.
    """

    keys: ClassVar[tuple[ConfigKey[Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        own = tuple(key for key in vars(cls).values() if isinstance(key, ConfigKey))
        names = {key.key for key in own}
        cls.keys = tuple(key for key in cls.keys if key.key not in names) + own
        for key in cls.keys:
            if key.name.lower() != key.key.replace(".", "").replace("-", "").lower():
                raise TypeError(f"{key.name} is not {key.key} in camelCase")

    def __init__(self, values: Mapping[str, object]) -> None:
        """
        @param values: a value for each effective key, by name. C{fromProperties} checks them.
        """
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(map(repr, vars(self).values())))

    def __repr__(self) -> str:
        values = ", ".join(
            f"{key.name}={'…' if key.type.isSecret else repr(getattr(self, key.name))}"
            for key in self.keys
            if key.isEffective
        )
        return f"{type(self).__name__}({values})"

    def replace(self, **changes: object) -> Self:
        """
        A copy with other values, by name. The values are not checked.

        @raise TypeError: a name is not a setting's.
        """
        if not changes.keys() <= vars(self).keys():
            raise TypeError(f"no such setting: {', '.join(changes.keys() - vars(self).keys())}")
        return type(self)({**vars(self), **changes})

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Warn = lambda message: None
    ) -> Self:
        """
        Check a property file and convert its values.

        @param properties: texts by key; a L{Properties} lets errors name file and line.
        @param warn: called with a sentence for each unknown key, with its nearest neighbour, and
            for each part of a value that was skipped.
        @raise ConfigurationError: a line for each key that is missing or wrong, with its value
            (unless secret) and the reason; or the keys that contradict each other.
        """
        values = cls._read(properties, warn)
        for key in cls.keys:
            if key.least is not None:
                least = values[key.least.name]
                if key.key in properties and values[key.name] < least:
                    raise ConfigurationError(
                        f"{key.key}={properties[key.key]}: must be at least {key.least.key}, "
                        f"which is {least}"
                    )
                values[key.name] = max(values[key.name], least)
        cls.complete(values, properties, warn)
        return cls(values)

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        """
        Derive further defaults, and check the keys that constrain each other.

        @param values: values by name; L{None} for an absent key without a default. Changed in
            place.
        @raise ConfigurationError: two keys contradict each other.
        """

    @classmethod
    def _read(cls, properties: Mapping[str, str], warn: Warn) -> dict[str, Any]:
        problems: list[str] = []
        known = {key.key for key in cls.keys}
        prefixes = tuple(key.key for key in cls.keys if key.isPrefix)
        for name in properties:
            if name not in known and not name.startswith(prefixes):
                near = difflib.get_close_matches(name, known, 1, 0.5)
                warn(
                    f"{_shown(properties, name)}: there is no such key and it has no effect"
                    + (f"; did you mean {near[0]}?" if near else "")
                )
        values: dict[str, Any] = {}
        for key in cls.keys:
            value: object = None
            if key.isPrefix:
                value = {
                    name.removeprefix(key.key): key.type.parse(text, warn)
                    for name, text in properties.items()
                    if name.startswith(key.key)
                }
            elif key.key in properties:
                where = _shown(properties, key.key, key.type.isSecret)
                try:
                    value = key.type.parse(
                        properties[key.key],
                        lambda text, where=where: warn(f"{where}: {text}"),  # type: ignore[misc]
                    )
                except ValueError as error:
                    problems.append(f"{where}: {error}")
            elif key.isRequired:
                problems.append(f"{key.key} is missing: {key.doc}")
            elif key.default is not None:
                value = key.type.parse(key.default, lambda text: None)
            elif key.fallback is not None:
                value = values[key.fallback.name]
            if key.isEffective:
                values[key.name] = value
        if problems:
            raise ConfigurationError("\n".join(problems))
        return values


def _shown(properties: Mapping[str, str], key: str, isSecret: bool = False) -> str:
    location = properties.location(key) if isinstance(properties, Properties) else ""
    prefix = f"{location}: " if location else ""
    return f"{prefix}{key}={'…' if isSecret else properties[key]}"
