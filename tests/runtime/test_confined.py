"""Changes of modules that one thread alone sees."""

import logging
import sys
import threading
import types
import warnings

import pytest

from sparsify.runtime import confined
from sparsify.runtime.locks import Lock


def elsewhere(work):
    """What a function returns in another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(10)
    return found[0]


@pytest.fixture
def owner():
    return types.SimpleNamespace(name=lambda: "original", flag=False)


def test_functions(owner):
    before = owner.name
    with confined.substituted(owner, "name", lambda: "other"):
        assert owner.name() == "other"
        assert elsewhere(owner.name) == "original"
    assert owner.name is before


def test_methods_bind():
    class Owner:
        def name(self):
            return "original"

    with confined.substituted(Owner, "name", lambda self: type(self).__name__):
        assert Owner().name() == "Owner"
        assert elsewhere(Owner().name) == "original"
    assert Owner().name() == "original"


def test_flags(owner):
    with confined.flagged(owner, "flag"):
        assert owner.flag
        assert owner.flag == 1
        assert owner.flag | False is True
        assert owner.flag & True is True
        assert not elsewhere(lambda: bool(owner.flag))
    assert owner.flag is False


def test_contexts_that_end_in_another_order(owner):
    before = owner.name
    first = confined.substituted(owner, "name", lambda: "first")
    second = confined.substituted(owner, "name", lambda: "second")
    first.__enter__()
    second.__enter__()
    saved = owner.name  # as another thread would save it
    first.__exit__(None, None, None)
    assert owner.name() == "second"
    second.__exit__(None, None, None)
    assert owner.name is before
    owner.name = saved
    assert saved() == "original"
    with confined.substituted(owner, "name", lambda: "third"):
        assert owner.name() == "third"
    assert owner.name is before


def test_substitutes_that_are_put_back_remove_themselves(owner):
    """Other code saves a value within a context, and puts it back after the context."""
    before = owner.name
    with confined.substituted(owner, "name", lambda: "other"), confined.flagged(owner, "flag"):
        function, flag = owner.name, owner.flag
    owner.name, owner.flag = function, flag
    assert elsewhere(owner.name) == "original"
    assert owner.name is before
    assert not elsewhere(lambda: bool(owner.flag))
    assert owner.flag is False


def test_substitutes_of_others_stay_where_one_removes_itself(owner):
    before = owner.name
    first = confined.substituted(owner, "name", lambda: "first")
    first.__enter__()
    saved = owner.name
    with confined.substituted(owner, "name", lambda: "second"):
        first.__exit__(None, None, None)
        assert saved() == "original"
        assert owner.name() == "second"
    assert owner.name is before


@pytest.mark.parametrize("starts_first", [True, False])
def test_contexts_of_two_threads_that_read_and_write_at_once(starts_first):
    """One thread reads the attribute, the other one begins or ends its context, and the first one writes."""
    read, other_done = threading.Event(), threading.Event()

    class Owner:
        def __getattribute__(self, key):
            value = object.__getattribute__(self, key)
            if key == "name" and threading.current_thread() is slow and not read.is_set():
                read.set()
                other_done.wait(0.5)
            return value

    owner = Owner()
    owner.name = original = lambda: "original"
    context, ready, leave = (
        confined.substituted(owner, "name", lambda: "other"),
        threading.Event(),
        threading.Event(),
    )

    def change():
        with confined.substituted(owner, "name", lambda: "slow"):
            ready.set()
            leave.wait(10)

    slow = threading.Thread(target=change)
    if starts_first:
        context.__enter__()
    slow.start()
    assert read.wait(10)
    if starts_first:
        context.__exit__(None, None, None)
    else:
        context.__enter__()
    other_done.set()
    assert ready.wait(10)
    leave.set()
    slow.join(10)
    if not starts_first:
        assert owner.name() == "other"
        context.__exit__(None, None, None)
    assert vars(owner)["name"] is original


def test_silence(capsys):
    log = logging.getLogger("confined")
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log.addHandler(handler)
    filters, stream = list(warnings.filters), sys.stderr

    def speak(text):
        print(text, file=sys.stderr)
        log.warning(text)
        with pytest.warns(UserWarning, match=text):
            warnings.warn(text, stacklevel=1)

    with confined.silenced(["confined"]):
        print("hidden", file=sys.stderr)
        log.warning("hidden")
        warnings.warn("hidden", stacklevel=1)
        elsewhere(lambda: speak("shown"))
    speak("later")
    assert capsys.readouterr().err == "shown\nlater\n"
    assert said == ["shown", "later"]
    assert list(warnings.filters) == filters
    assert sys.stderr is stream
    log.removeHandler(handler)


def test_locks_are_reentrant_and_free_in_children():
    lock, inside, leave = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock, lock:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    lock.free()  # as a child does after a fork
    with lock:
        leave.set()
    thread.join(10)
    assert not thread.is_alive()
