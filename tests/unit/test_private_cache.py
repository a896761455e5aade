"""The cache folder and its files: what others may write is not believed, and links in it are not followed."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from rekindle import RekindleWarning
from rekindle.errors import FormatError
from rekindle.model import cache_folder as folders
from rekindle.model.cache_folder import cache_folder, make_private
from rekindle.model.files import read_own, write_own

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
ANOTHER = 54321  # the id of another user
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, in one that is private."""
    tmp_path.chmod(0o755)
    found = tmp_path / "cache"
    monkeypatch.setenv("REKINDLE_CACHE", str(found))
    monkeypatch.setattr(folders, "_told", set())
    return found


def test_a_new_folder_is_made_for_its_user_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        make_private(folder)
        write_own(folder / "a.json", "{}")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o600
    assert cache_folder() == folder
    assert cache_folder("plans") == folder / "plans"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.parametrize("inside", [(), ("plans",)])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, mode: int, inside: tuple[str, ...]) -> None:
    at = folder.joinpath(*inside)
    at.mkdir(parents=True)
    at.chmod(mode)
    with pytest.warns(RekindleWarning, match="other users may write to"):
        assert cache_folder(*inside) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_folder(*inside) is None  # which is said once
    at.chmod(0o755)
    assert cache_folder(*inside) == at


def test_one_note_says_it_for_all_folders_inside(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.warns(RekindleWarning) as told:
        assert {folders.cache_folder(kind) for kind in ("plans", "costs")} == {None}
    assert [f"the cache folder {folder}: other users" in str(w.message) for w in told] == [True]


def test_nor_one_that_others_may_replace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(folder)
    folder.parent.chmod(0o1777)  # as /tmp is
    assert cache_folder() == folder
    folder.parent.chmod(0o777)
    link = folder.parent.parent / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("REKINDLE_CACHE", str(link))
    with pytest.warns(RekindleWarning, match="other users may write to"):
        assert cache_folder() is None
    folder.parent.chmod(0o755)
    assert cache_folder() == link


@needs_root
@pytest.mark.parametrize("which", ["folder", "parent", "link"])
def test_nor_one_that_another_user_owns(folder: Path, which: str) -> None:
    make_private(folder)
    if which == "link":
        target = folder.rename(folder.with_name("elsewhere"))
        os.chown(target, ANOTHER, ANOTHER)
        folder.symlink_to(target)
    else:
        os.chown(folder if which == "folder" else folder.parent, ANOTHER, ANOTHER)
    with pytest.warns(RekindleWarning, match="another user owns"):
        assert cache_folder() is None


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(folder: Path) -> None:
    make_private(folder)
    target, file = folder.parent / "precious", folder / "costs.json"
    target.write_text("as it was")
    for make in (file.symlink_to, file.hardlink_to):
        make(target)
        if file.is_symlink():
            with pytest.raises(OSError, match="symbolic link"):
                read_own(file, 100)
        write_own(file, "new")
        assert (file.read_text(), target.read_text()) == ("new", "as it was")
        assert read_own(file, 100) == "new"
        file.unlink()


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_that_others_may_write_to_is_not_read(folder: Path, mode: int) -> None:
    make_private(folder)
    write_own(folder / "a.json", "{}")
    (folder / "a.json").chmod(mode)
    with pytest.raises(FormatError, match="may write to it"):
        read_own(folder / "a.json", 100)
