"""Message classes and calls of a `.proto` file, without generated code.

protobuf builds classes from descriptors; protoc, which reads `.proto` files, is no part of it. The
reader takes what `open_inference.proto` uses of the language: messages, fields, `map`, `oneof`,
unary calls. The descriptors lie in a pool of their own, so that a client library with the same
package in the same process does not collide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FILE: Final = Path(__file__).with_name("open_inference.proto")
SERVICE: Final = "GRPCInferenceService"

_TOKEN: Final = re.compile(r"//[^\n]*|\s+|(?P<token>[\w.]+|\"[^\"]*\"|[{}()<>;=,])")

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[dict[str, Any]] = {
    name.removeprefix("TYPE_").lower(): number for name, number in _Field.Type.items()
}


class Call(NamedTuple):
    """The classes of a call's request and response."""

    request: Any
    response: Any


class Schema(NamedTuple):
    """The package's name, its message classes by name, the calls of its service, and the numbers of
    its enumerations' values by name.
    """

    package: str
    messages: Mapping[str, Any]
    calls: Mapping[str, Call]
    enums: Mapping[str, int]


@cache
def protocol() -> Schema:
    """The schema of the protocol."""
    return schema_of(FILE.read_text("utf-8"))


def schema_of(text: str) -> Schema:
    """The schema that *text*, in the language of `.proto` files, describes. Raises `ValueError`."""
    file = _Reader(text).file()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }
    calls = {
        method.name: Call(
            found[method.input_type.rpartition(".")[2]],
            found[method.output_type.rpartition(".")[2]],
        )
        for service in file.service
        for method in service.method
    }
    enums = {value.name: value.number for kind in file.enum_type for value in kind.value}
    return Schema(file.package, found, calls, enums)


class _Reader:
    """Reads one file."""

    def __init__(self, text: str) -> None:
        self._tokens: Iterator[str] = _tokens(text)
        self._next = next(self._tokens, "")
        self._file = descriptor_pb2.FileDescriptorProto(syntax="proto3")

    def file(self) -> Any:
        while self._next:
            match self._take():
                case "syntax":
                    self._expect("=", '"proto3"', ";")
                case "package":
                    self._file.package = self._take()
                    self._expect(";")
                case "message":
                    self._message(self._file.message_type.add(), f".{self._file.package}")
                case "enum":
                    self._enum(self._file.enum_type.add(name=self._take()))
                case "service":
                    self._service(self._file.service.add(name=self._take()))
                case other:
                    raise ValueError(f"{other!r} begins no part of a file")
        self._file.name = f"penstock/{self._file.package}.proto"
        return self._file

    def _service(self, service: Any) -> None:
        self._expect("{")
        while not self._took("}"):
            self._expect("rpc")
            method = service.method.add(name=self._take())
            self._expect("(")
            method.input_type = f".{self._file.package}.{self._take()}"
            self._expect(")", "returns", "(")
            method.output_type = f".{self._file.package}.{self._take()}"
            self._expect(")", ";")

    def _enum(self, kind: Any) -> None:
        self._expect("{")
        while not self._took("}"):
            value = kind.value.add(name=self._take())
            self._expect("=")
            value.number = int(self._take())
            self._expect(";")
        if not kind.value:
            raise ValueError(f"{kind.name!r} has no values")

    def _message(self, message: Any, scope: str) -> None:
        message.name = self._take()
        scope = f"{scope}.{message.name}"
        self._expect("{")
        while not self._took("}"):
            if self._took("message"):
                self._message(message.nested_type.add(), scope)
            elif self._took("oneof"):
                message.oneof_decl.add(name=self._take())
                self._expect("{")
                while not self._took("}"):
                    field = self._field(message, scope, self._take())
                    field.oneof_index = len(message.oneof_decl) - 1
            elif self._took("map"):
                self._map(message, scope)
            elif self._took("repeated"):
                self._field(message, scope, self._take()).label = _Field.LABEL_REPEATED
            else:
                self._field(message, scope, self._take())

    def _field(self, message: Any, scope: str, kind: str) -> Any:
        field = message.field.add(name=self._take(), label=_Field.LABEL_OPTIONAL)
        self._expect("=")
        field.number = int(self._take())
        self._expect(";")
        self._set_type(field, message, scope, kind)
        return field

    def _set_type(self, field: Any, message: Any, scope: str, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
            return
        if any(known.name == kind for known in self._file.enum_type):
            field.type, field.type_name = _Field.TYPE_ENUM, f".{self._file.package}.{kind}"
            return
        inner = any(nested.name == kind for nested in message.nested_type)
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f"{scope}.{kind}" if inner else f".{self._file.package}.{kind}"

    def _map(self, message: Any, scope: str) -> None:
        """A map is a list of entries, which are messages of a key and a value."""
        self._expect("<", "string", ",")
        kind = self._take()
        self._expect(">")
        name = self._next
        entry = "".join(map(str.capitalize, name.split("_"))) + "Entry"
        made = message.nested_type.add(name=entry)
        made.options.map_entry = True
        made.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        value = made.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL)
        self._set_type(value, message, scope, kind)
        self._field(message, scope, entry).label = _Field.LABEL_REPEATED

    def _take(self) -> str:
        taken, self._next = self._next, next(self._tokens, "")
        return taken

    def _took(self, token: str) -> bool:
        if self._next != token:
            if not self._next:
                raise ValueError(f"the file ends before {token!r}")
            return False
        self._take()
        return True

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            if (taken := self._take()) != token:
                raise ValueError(f"{taken!r} stands where {token!r} belongs")


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text[at]!r} is no part of the language")
        at = found.end()
        if found["token"]:
            yield found["token"]
