"""Attacks on recipes: files that never end or grow, values that are none, patterns that would take for ever."""

import os
import time

import pytest

from sparsify import recipe
from sparsify.errors import FormatError, RecipeError, SparsifyError
from sparsify.recipe.target import selects
from sparsify.storage.format import Format

HEAD = "schema: 1\nname: x\n"
LAUGHS = "".join(f" a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
REFUSED = {
    "long": (HEAD + "#" + "a" * (1 << 20), "at most 256 KiB"),
    "aliases of aliases": (f"{HEAD}args:\n a0: &a0 [x, x]\n{LAUGHS}", "too large or refers to itself"),
    "itself": (f"{HEAD}args: &a {{a: *a}}", "refers to itself"),
    "deep in lines": ("- " * 100_000, "nested too deeply"),
    "deep in braces": (HEAD + "args: " + "{a:\n " * 1000, "nested too deeply"),
    "arguments that grow": (f"{HEAD}args: {{a: {'x' * 1000}}}\nsource: {'${a}' * 1000}\n", "at most 256 KiB"),
    "digits": (HEAD + "seed: " + "9" * 5000, ":3:7: '9{40}' is no int"),
    "hexadecimal digits": (HEAD + "seed: 0x" + "9" * 5000, ":3:7: '0x9{38}' is too large"),
    "no integer": (HEAD + "seed: !!int a", ":3:7: 'a' is no int"),
    "no number": (HEAD + "seed: !!float a", ":3:7: 'a' is no float"),
    "no truth value": (HEAD + "seed: !!bool a", ":3:7: 'a' is no bool"),
    "no mapping": (HEAD + "seed: !!map a", ":3:7: 'a' is no map"),
    "half a character": (HEAD + 'name: "\\ud800"'.replace("name", "source"), ":3:9: '.*' is no str"),
    "a tag": (HEAD + "seed: !!python/object/apply:os.system [ls]", "the tag .* is refused"),
    "a key twice": (HEAD + "name: y", "the key 'name' stands twice, first in line 2"),
    "many mistakes": (HEAD + "".join(f"k{i}: 1\n" for i in range(300)), "and 280 further mistakes"),
    "long mistakes": (HEAD + "k" * 100_000 + ": 1\n", "^.{0,1100}$"),
    "an expression": (f"{HEAD}sparsify: [{{targets: ['re:(']}}]", ":3:23: .*'\\(' cannot be read: unclosed group"),
    "a look-ahead": (f"{HEAD}sparsify: [{{targets: ['re:(?=a)a']}}]", "look-around.*is not supported"),
    "a back reference": (f"{HEAD}sparsify: [{{ignore: ['re:(a)\\1']}}]", "backreferences are not supported"),
    "two groups": (f"{HEAD}sparsify: [{{targets: ['re:a)|(b']}}]", "unopened group"),
    "many copies": (f"{HEAD}sparsify: [{{targets: ['re:(a{{1,99}}){{1,99}}']}}]", "repeats too much"),
    "a long target": (f"{HEAD}sparsify: [{{targets: ['{'a' * 2000}']}}]", "has 2000 characters, more than 1000"),
    "a call": (f"{HEAD}sparsify: [{{targets: ['scope:a@x']}}]", "after @ stands the number of a call"),
    "call 0": (f"{HEAD}sparsify: [{{targets: ['scope:a@0']}}]", "after @ stands the number of a call"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_recipes(name):
    text, words = REFUSED[name]
    with pytest.raises(RecipeError, match=words):
        recipe.loads(text)


def test_mappings_that_hold_themselves():
    args = {}
    args["args"] = args
    with pytest.raises(RecipeError, match="refers to itself"):
        recipe.load({"schema": 1, "name": "x", "model": {"factory": "f", "args": args}})


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, "[" * 900, "!!int a", "&a [*a]", "!!bool a"])
def test_arguments_that_are_no_values_are_texts(value):
    assert recipe.loads(HEAD + "args: {a: 1}", a=value).args["a"] == value


def test_files_that_are_none(tmp_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    long = tmp_path / "long.yaml"
    long.touch()
    os.truncate(long, 3 << 30)
    for name, words in [
        ("/dev/zero", "a pipe or device is no recipe"),
        (pipe, "a pipe or device is no recipe"),
        (tmp_path, "a folder is no recipe"),
        ("a" * 5000, "no file and no built-in recipe"),
        ("a\0b", "a path, as text or pathlib.Path"),
    ]:
        with pytest.raises(SparsifyError, match=words):
            recipe.load(name)
    with pytest.raises(RecipeError, match="at most 256 KiB"):
        recipe.load(long)


@pytest.mark.parametrize(
    ("target", "name", "selected"),
    [
        ("re:param:(a+)+!", "a" * 5000, False),
        ("re:param:(a|a)*b", "a" * 5000, False),
        ("re:param:(a|aa)+", "a" * 5000, True),
        ("re:param:(.*)*x(.*)*y", "x" * 5000, False),
        ("param:" + "*a" * 300 + "*b", "a" * 5000, False),
        ("param:" + "*" * 900, "a" * 5000, True),
        ("param:" + "*[!b]" * 150 + "b", "a" * 5000, False),
    ],
)
def test_patterns_take_linear_time(target, name, selected):
    selects(target, "param", "x")
    start = time.process_time()
    assert selects(target, "param", name) is selected
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("target", "kind", "name", "selected"),
    [
        ("re:param:a|b", "param", "b", False),
        ("re:(param:a|param:b)", "param", "b", True),
        (r"re:param:layer\.\d+\.weight", "param", "layer.10.weight", True),
        (r"re:param:layer\.\d+", "param", "layer.1.weight", False),
        (r"re:.*layer", "input", "x.layer", True),
        (r"re:(?i)PARAM:A", "param", "a", True),
        (r"re:param:(?P<n>a{2,3})", "param", "aaa", True),
        (r"re:param:a", "param", "a\n", False),
        ("param:a.*", "param", "a.b", True),
        ("a.*", "param", "a.b", True),
        ("a.*", "op", "a.b", False),
        ("scope:a@2", "scope", "a@1", True),
        ("scope:a@2", "scope", "a", False),
    ],
)
def test_targets(target, kind, name, selected):
    assert selects(target, kind, name) is selected


@pytest.mark.parametrize(
    "text",
    [
        " " * 100_000,
        "i" + " " * 100_000 + "x",
        "dense" + " " * 100_000 + "x",
        "i" + " " * 900 + "x",
        "nm(" + " ," * 400 + "group=",
        "i/" + "9" * 900 + ": dense",
        "bcsr(" + "9" * 900 + ", 2)",
        "dense, " * 50_000,
        "bcsr(" + "1," * 400 + ")",
    ],
    ids=lambda text: text[:8],
)
def test_formats_that_are_none(text):
    start = time.process_time()
    with pytest.raises(FormatError):
        Format(text)
    assert time.process_time() - start < 0.5
