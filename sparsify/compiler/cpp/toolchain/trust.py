"""Trusted files, writable by nobody else: owners and modes of a path and of each opened file.

In: `~/.cache/sparsify/kernels`. Out: `None`, or the reason why files in the directory are not trusted, such as
`"others can write to /home/ann/.cache (mode 0777)"`; and the bytes of a trusted file.

Compiled kernels run as the user who loads them. Another user may neither write to the directory of kernels nor replace
the directory, so every directory and symbolic link on the path is checked, as ssh checks the path of its keys. Root is
trusted.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

MOST_LINKS: Final = 40
MOST_BYTES: Final = 1 << 28
ROOT: Final = 0
WRITABLE: Final = 0o022
# Names of unfinished files and directories.
UNFINISHED: Final = "build-"


def refusal(directory: Path) -> str | None:
    """The reason why other users could change files in a directory, `None` for a safe directory.

    Raises:
        OSError: the directory does not exist or cannot be inspected.
    """
    status, place = os.lstat("/"), "/"
    for following, status_of_following in _components(directory):
        if reason := _refusal(place, status, is_parent=True):
            return reason
        place, status = following, status_of_following
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{place} is not a directory")
    return _refusal(place, status, is_parent=False)


def read(path: Path) -> bytes:
    """The bytes of a file of this user or root, not writable by others.

    Raises:
        OSError: the file cannot be read, is no regular file, is too large or could have been written by others.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise PermissionError(f"{path} is no regular file of at most {MOST_BYTES} bytes")
        if status.st_nlink > 1:
            raise PermissionError(f"{path} has another name, under which it could be changed")
        if reason := _refusal(str(path), status, is_parent=False):
            raise PermissionError(reason)
        return file.read(MOST_BYTES)


def write(path: Path, content: bytes) -> None:
    """Writes a file atomically, readable by this user alone.

    Raises:
        OSError: the write failed; no partial file is left.
    """
    descriptor, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        put(Path(name), path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


def put(source: Path, path: Path) -> None:
    """Moves a finished file to its place, replacing an existing file or directory."""
    source.chmod(0o600)
    try:
        os.replace(source, path)
    except IsADirectoryError:
        shutil.rmtree(path)
        os.replace(source, path)


def make(directory: Path) -> None:
    """Makes a directory and missing parents, each for this user alone; existing ones are unchanged."""
    if directory.is_dir():
        return
    make(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)  # the umask may have removed permissions of the user, too


def make_unfinished(directory: Path) -> Path:
    """A new directory for unfinished work inside of another one."""
    made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
    made.chmod(0o700)
    return made


def _components(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and symbolic link on the way to a path, and the target of the path."""
    place, links = "/", 0
    rest = [*reversed(path.absolute().parts[1:])]
    while rest:
        name = rest.pop()
        if name == "..":
            place = os.path.dirname(place)  # noqa: PTH120
            continue
        following = os.path.join(place, name)  # noqa: PTH118
        status = os.lstat(following)
        yield following, status
        if not stat.S_ISLNK(status.st_mode):
            place = following
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(f"{path} passes more than {MOST_LINKS} symbolic links")
        target = Path(os.readlink(following))  # noqa: PTH115
        place = "/" if target.is_absolute() else place
        rest += reversed(target.parts[target.is_absolute() :])


def _refusal(place: str, status: os.stat_result, *, is_parent: bool) -> str | None:
    """The reason why users other than this user and root may write to a file or directory.

    In a parent with the sticky bit, such as `/tmp`, others cannot rename files of this user.
    """
    is_unmapped = is_parent and status.st_uid == _unmapped_user()
    if status.st_uid not in (os.getuid(), ROOT) and not is_unmapped:
        return f"{place} belongs to another user ({status.st_uid})"
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or not mode & WRITABLE or (is_parent and mode & stat.S_ISVTX):
        return None
    if not mode & stat.S_IWOTH and _is_private(status.st_gid) and not _has_access_list(place):
        return None
    return f"others can write to {place} (mode {mode:04o})"


@cache
def _is_private(group: int) -> bool:
    """Whether a group contains only this user, and perhaps root, as the per-user groups of distributions."""
    import grp
    import pwd

    try:
        members = {pwd.getpwnam(name).pw_uid for name in grp.getgrgid(group).gr_mem}
    except KeyError:
        return False
    members |= {entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == group}
    return members <= {os.getuid(), ROOT}


def _has_access_list(place: str) -> bool:
    """Whether an access control list may name further users."""
    try:
        return "system.posix_acl_access" in os.listxattr(place)
    except OSError:
        return False  # a file system without access control lists


@cache
def _unmapped_user() -> int | None:
    """The user number of all users outside of this user namespace, `None` outside of namespaces.

    Containers of unprivileged users show the system's own directories as owned by this number.
    """
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None
