"""Files on disk: read within limits, written whole or not at all, locked while several processes write.

A link stays a link: what is written is the regular file that it leads to. Files of the cache are the exception: a link in
their place is not followed, but replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import FormatError, RekindleError, UsageError
from ..printed import name, value

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MOST_BYTES = 256 * 2**20  # of a file that is read; the plan of 100,000 ops takes about a tenth of it
KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip
OWN_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")  # these lead to open files of this program
POLL_S = 0.01
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
STALE_S = 60.0  # a lock file this old was left behind by a process that died

PathLike = str | os.PathLike[str]


def is_own(there: os.stat_result) -> bool:
    """Whether this user, or the system's administrator, owns it, and no other user may write to it."""
    return not hasattr(os, "geteuid") or there.st_uid in (0, os.geteuid()) and not there.st_mode & OTHERS_WRITE


def check_writable(path: PathLike) -> Path:
    """The regular file that writing to `path` makes or replaces: `path`, or what it leads to as a link.

    Raises
    ------
    UsageError : it is a folder, a device, a pipe or a socket, is protected, or its folder is missing or cannot be
        written to.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UsageError(f"{value(path)} is no path of a file; give a string or a pathlib.Path")
    text = os.fspath(path)
    cannot = f"cannot write {name(text) or 'a file without a name'}"
    if not text or text.endswith(("/", os.sep)):
        raise UsageError(f"{cannot}: it names no file; name one")
    if os.path.abspath(text).startswith(OWN_STREAMS):
        raise UsageError(f"{cannot}: it is a stream of this program; name a regular file")
    try:
        real = Path(os.path.realpath(text))
        there = _stat(real)
        folder = _stat(real.parent)
    except (OSError, ValueError) as e:
        raise UsageError(f"{cannot}: {_why(e)}; name another file") from None
    if there is not None and not stat.S_ISREG(there.st_mode):
        kind = KINDS.get(stat.S_IFMT(there.st_mode), "no regular file")
        raise UsageError(f"{cannot}: it is {kind}; name a regular file")
    if folder is None or not stat.S_ISDIR(folder.st_mode):
        raise UsageError(f"{cannot}: the folder {name(str(real.parent))} does not exist; make it first")
    if not os.access(real.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{cannot}: nothing may be written in the folder {name(str(real.parent))}; name another file")
    if there is not None and not os.access(real, os.W_OK):
        raise UsageError(f"{cannot}: the file is write-protected; name another file")
    return real


def write_text(path: PathLike, text: str) -> None:
    """Write a text file in UTF-8. Lone surrogates, which it cannot hold, are spelled out. Else as `write_bytes`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write a file whole or not at all: after any failure the old file is as it was. It keeps its permissions.

    Raises
    ------
    UsageError : as `check_writable`.
    RekindleError : the disk is full or fails.
    """
    real = check_writable(path)
    try:
        _replace(real, content, 0o666, _stat(real))
    except OSError as e:
        raise RekindleError(
            f"cannot write {name(os.fspath(path))}: {_why(e)}; nothing was written, and a file that was there is as it "
            "was. Make room or name another file"
        ) from None


def write_own(path: Path, text: str) -> None:
    """Write a file of the cache, whole or not at all, for this user alone. Raises OSError where it cannot."""
    _replace(path, text.encode("utf-8", "backslashreplace"), 0o600, None)


def _replace(path: Path, content: bytes, mode: int, old: os.stat_result | None) -> None:
    """Write a file whole or not at all. old : the file whose permissions it gets."""
    # A name of its own and short, so that a long name of a file leaves room for it.
    new = path.with_name(f".rekindle-{secrets.token_hex(8)}")
    # The system applies the umask; mkstemp would not.
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())  # or the new name could survive a power failure, and the content not
        if old is not None:
            _keep_mode(old, new)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read_own(path: Path, most: int) -> str:
    """The text of a file of the cache: no link, and a file that no other user may write to. Else as `read_text`."""
    return read_text(path, most, regular=True, own=True)


def read_text(path: PathLike, most: int = MOST_BYTES, regular: bool = False, own: bool = False) -> str:
    """The text of a file in UTF-8, up to `most` bytes. regular : a pipe is refused too, so that reading never waits.
    own : links are refused, and files that another user owns or may write to.

    Raises
    ------
    FormatError : it is a folder, a device or too large, or is not UTF-8.
    OSError : the system cannot read it.
    """
    where = name(os.fspath(path))
    # A pipe without a writer would hold up a plain open for ever.
    how = (getattr(os, "O_NONBLOCK", 0) if regular else 0) | (getattr(os, "O_NOFOLLOW", 0) if own else 0)
    try:
        fd = os.open(path, os.O_RDONLY | how | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except ValueError as e:  # a null byte in the name
        raise FormatError(f"cannot read {where}: {e}") from None
    there = os.fstat(fd)
    mode = there.st_mode
    if own and not is_own(there):
        os.close(fd)
        raise FormatError(f"cannot read {where}: another user owns it or may write to it")
    if not stat.S_ISREG(mode) and (regular or not stat.S_ISFIFO(mode)):
        os.close(fd)
        raise FormatError(f"cannot read {where}: it is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}")
    with os.fdopen(fd, "rb") as f:
        raw = f.read(most + 1)
    if len(raw) > most:
        raise FormatError(f"{where} has more than {most >> 20} MiB; no file of Rekindle is that large")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FormatError(f"{where} is damaged or is no text ({e}); nothing of it was used") from None


@contextlib.contextmanager
def locked(folder: Path, seconds: float = 10.0) -> Iterator[None]:
    """Alone in a folder among all processes that ask for the same, within `seconds`.

    The folder itself is locked, so that no file stays behind; where the system cannot do that, a file `.lock` is made in
    it, and removed.

    Raises
    ------
    TimeoutError : another process holds it for longer.
    OSError : the folder cannot be locked.
    """
    until = time.monotonic() + seconds
    fd = _locked_folder(folder, until)
    if fd is not None:
        try:
            yield
        finally:
            os.close(fd)  # which lets go of the lock
        return
    file = folder / ".lock"
    _make_lock_file(file, until)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def _locked_folder(folder: Path, until: float) -> int | None:
    """A descriptor that holds the lock; None where the system or the file system knows no such lock."""
    if fcntl is None:
        return None
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except OSError as e:
                if e.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EBADF):
                    os.close(fd)
                    return None
                if e.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise
            _wait(folder, until)
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise


def _make_lock_file(file: Path, until: float) -> None:
    while True:
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > STALE_S:
                    file.unlink()
        _wait(file, until)


def _wait(what: Path, until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"another process holds the lock of {what}")
    time.sleep(POLL_S)


def _stat(path: Path) -> os.stat_result | None:
    """None: there is nothing."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _keep_mode(there: os.stat_result, new: Path) -> None:
    """The new file gets the permissions, and if the system allows it the owner, of the old one."""
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(new, there.st_uid, there.st_gid)
    os.chmod(new, stat.S_IMODE(there.st_mode))


def _why(e: OSError | ValueError) -> str:
    return str(getattr(e, "strerror", None) or e)
