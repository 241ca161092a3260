"""Protobuf's text format, as importers read it."""

import re
import unittest

import numpy as np

from dinghy_export.importers.text_format import parse
from dinghy_export.importers.weights import ImportRefused


class TextFormatTest(unittest.TestCase):
    def test_reads(self):
        config = parse(
            '''a: "x" 'y' # a comment
            b { c: -1.5e3; d: TRUE, d: [1, 0x10] } e: [ { f: 017 }, < f: 2 > ]
            g: "\\x1d\\n\\344\\270\\255" h: -inf i {}''', "t")
        self.assertEqual(config.names(), ["a", "b", "e", "g", "h", "i"])
        self.assertEqual((config.text("a"), config.text("g")), ("xy", "\x1d\n中"))
        self.assertEqual(config.numbers("h"), [-np.inf])
        self.assertEqual([inner.integer("f") for inner in config.messages("e")], [15, 2])
        inner = config.message("b")
        self.assertEqual(inner.numbers("c"), [-1500.0])
        self.assertEqual(config.message("i").names(), [])
        self.assertIsNone(config.message("none"))
        self.assertEqual(config.integer("none", 7), 7)

    def test_refused(self):
        for text, message in (("a {", "line 1: expected the name of a field or }, got the end"),
                              ("a: 1\nb 3", "line 2: expected \":\" or a message after \"b\", got '3'"),
                              ("a: {b: }", "expected a value of \"b\", got '}'"), ("a: ?",
                                                                                   "expected protobuf's text format"),
                              ("a: [1", "expected a value of \"a\", got the end"), ("}",
                                                                                    "the name of a field, got '}'")):
            with self.subTest(text=text), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                parse(text, "t")
        config = parse("a: 1 a: 2 b: maybe c: -1 d: 'x' e { f: 1 g: 2 }", "t")
        for read, message in ((lambda: config.integer("a"), 't "a": expected one value, got 2'),
                              (lambda: config.flag("b"), 't "b": expected true or false, got maybe'),
                              (lambda: config.integer("c"), 't "c": expected a whole number, got -1'),
                              (lambda: config.integer("e"), 't "e": expected a whole number, got a message'),
                              (lambda: config.message("d"), "t \"d\": expected a message, got 'x'"),
                              (lambda: config.text("b"),
                               "t \"b\": expected text, got 'maybe'"), (lambda: config.word("d"),
                                                                        "t \"d\": expected a name, got 'x'")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                read()
        inner = config.message("e")
        self.assertEqual(inner.integer("f"), 1)
        with self.assertRaisesRegex(ImportRefused, 't e "g": this field is not supported here'):
            inner.finish()


if __name__ == "__main__":
    unittest.main()
