"""Reads protobuf's text format without the schema, and knows which fields were read.

    config = parse(open("pipeline.config").read(), "pipeline.config")
    model = config.message("model_config")
    model.integer("num_class", 1)
    model.finish()          # refuses fields that nobody read

A value is text, a number, an identifier or a message; what a field is to be, the reader asks for.
"""

import re

from dinghy_export.importers.weights import ImportRefused

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
  | (?P<separator>[,;])
  | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>-?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?|inf\b|nan\b))
  | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
  | (?P<mark>[{}<>\[\]:])
""", re.VERBOSE)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Name(str):
    """An identifier: an enum's value, true or false."""


class Message:
    """A message's fields; each of its readers marks what it reads. Errors name the path of the field."""
    def __init__(self, path):
        self.path = path
        self._fields = {}  # name -> values
        self._read = set()

    def names(self) -> list:
        return list(self._fields)

    def has(self, name) -> bool:
        return name in self._fields

    def messages(self, name) -> list:
        return [self._typed(name, value, Message, "a message") for value in self._values(name)]

    def message(self, name):
        """None where there is none."""
        return self._one(name, None, lambda value: self._typed(name, value, Message, "a message"))

    def texts(self, name) -> list:
        return [self._text(name, value) for value in self._values(name)]

    def text(self, name, default=None):
        return self._one(name, default, lambda value: self._text(name, value))

    def word(self, name, default=None):
        """An enum's value."""
        return self._one(name, default, lambda value: str(self._typed(name, value, Name, "a name")))

    def flag(self, name, default=None):
        def read(value):
            if value in ("true", "True", "t", "1", 1):
                return True
            if value in ("false", "False", "f", "0", 0):
                return False
            raise self.refusal(name, f"expected true or false, got {value}")

        return self._one(name, default, read)

    def integers(self, name) -> list:
        return [self._integer(name, value) for value in self._values(name)]

    def integer(self, name, default=None):
        return self._one(name, default, lambda value: self._integer(name, value))

    def numbers(self, name) -> list:
        return [float(self._typed(name, value, (int, float), "a number")) for value in self._values(name)]

    def ignore(self, *names):
        """These fields do not matter here."""
        self._read.update(names)

    def finish(self) -> None:
        left = [name for name in self._fields if name not in self._read]
        if left:
            raise self.refusal(left[0], "this field is not supported here")

    def refusal(self, name, what) -> ImportRefused:
        return ImportRefused(f'{self.path} "{name}": {what}')

    def add(self, name, value):
        self._fields.setdefault(name, []).append(value)

    def _values(self, name):
        self._read.add(name)
        return self._fields.get(name, [])

    def _one(self, name, default, read):
        values = self._values(name)
        if len(values) > 1:
            raise self.refusal(name, f"expected one value, got {len(values)}")
        return read(values[0]) if values else default

    def _typed(self, name, value, kind, what):
        if not isinstance(value, kind) or (kind is not Name and isinstance(value, Name)):
            raise self.refusal(name, f"expected {what}, got {'a message' if isinstance(value, Message) else value!r}")
        return value

    def _text(self, name, value):
        return self._typed(name, value, str, "text")

    def _integer(self, name, value):
        if type(value) is not int or value < 0:
            raise self.refusal(
                name, f"expected a whole number, got {value if not isinstance(value, Message) else 'a message'}")
        return value


def parse(text, path) -> Message:
    """Raises ImportRefused with the line of what cannot be read. `path`: what errors call the whole."""
    return _Parser(text, path).file()


class _Parser:
    def __init__(self, text, path):
        self._path = path
        self._tokens = []  # (kind, value, line)
        place, line = 0, 1
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise ImportRefused(
                    f"{path}, line {line}: expected protobuf's text format, got {text[place:place + 20]!r}")
            if match.lastgroup != "space":
                self._tokens.append((match.lastgroup, match.group(), line))
            line += match.group().count("\n")
            place = match.end()
        self._tokens.append(("end", "", line))
        self._next = 0

    def file(self):
        message = Message(self._path)
        self._fields(message, "end", "")
        return message

    def _fields(self, message, end_kind, end):
        while True:
            self._skip_separators()
            kind, value, line = self._take()
            if kind == end_kind and value == end:
                return
            if kind != "name":
                raise self._refusal(line, "the name of a field" + ("" if end_kind == "end" else f" or {end}"), value)
            colon = self._at(":")
            if colon:
                self._take()
            if self._at("["):
                self._take()
                while not self._at("]"):
                    message.add(value, self._value(message, value, True))
                    self._skip_separators()
                self._take()
            else:
                message.add(value, self._value(message, value, colon))

    def _value(self, message, name, colon):
        kind, value, line = self._take()
        if kind == "mark" and value in "{<":
            inner = Message(f"{message.path} {name}" if message.path == self._path else f"{message.path}.{name}")
            self._fields(inner, "mark", {"{": "}", "<": ">"}[value])
            return inner
        if not colon:
            raise self._refusal(line, f'":" or a message after "{name}"', value)
        if kind == "text":
            parts = [_unescape(value[1:-1])]
            while self._tokens[self._next][0] == "text":
                parts.append(_unescape(self._take()[1][1:-1]))
            return "".join(parts)
        if kind == "name":
            return Name(value)
        if kind == "number":
            return _number(value)
        raise self._refusal(line, f'a value of "{name}"', value)

    def _take(self):
        token = self._tokens[self._next]
        if token[0] != "end" or self._next == len(self._tokens) - 1:
            self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _skip_separators(self):
        while self._tokens[self._next][0] == "separator":
            self._take()

    def _at(self, mark):
        return self._tokens[self._next][:2] == ("mark", mark)

    def _refusal(self, line, expected, value):
        return ImportRefused(
            f"{self._path}, line {line}: expected {expected}, got {repr(value) if value else 'the end'}")


def _unescape(text):
    """Escapes name bytes, of UTF-8."""
    def plain(match):
        octal, hexadecimal, other = match.groups()
        if octal or hexadecimal:
            return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
        return _ESCAPES.get(other, other).encode()

    parts, end = [], 0
    for match in _ESCAPE.finditer(text):
        parts += [text[end:match.start()].encode(), plain(match)]
        end = match.end()
    return b"".join(parts + [text[end:].encode()]).decode(errors="replace")


def _number(text):
    try:
        return int(text, 0) if not re.fullmatch(r"-?0\d+", text) else int(text, 8)
    except ValueError:
        return float(text.rstrip("fF") if "inf" not in text else text)
