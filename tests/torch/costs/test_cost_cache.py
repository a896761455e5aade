"""Measured costs on disk: damaged files, several writers."""

import json
import os
import subprocess
import sys

import pytest
import torch

from cost_nodes import aten, node, one
from marks import sweep
from rekindle.model import files
from rekindle.torch.costs import cache as cost_cache
from rekindle.torch.costs import node_costs as costs
from rekindle.torch.costs.node_costs import node_costs

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: text.replace("rekindle.costs/1", "rekindle.costs/2"),
        lambda text: '{"format": "rekindle.costs/1", "environment": "x", "ops": {}}',
        lambda text: "\x00\xff",
    ],
)
def test_damaged_cache_is_passed_over_and_written_anew(cache, damage):
    call = node(aten.add.Tensor, torch.rand(10), torch.rand(10))
    node_costs([call])
    (file,) = cache.iterdir()
    file.write_text(damage(file.read_text()), encoding="latin-1")
    costs._SESSION.clear()  # as a new process would start
    (again,) = node_costs([call])
    assert again.seconds > 0
    assert len(json.loads(file.read_text())["ops"]) == 1


@pytest.mark.parametrize(
    "entry",
    [
        *([x, 0.0, 0, 1.0, 8] for x in (-1.0, "1", 1e999, True, 10**400, 1.7e308, 2**70, float("nan"), 2e5, 0.0)),
        *([1.0, x, 0, 1.0, 8] for x in (-1.0, "1", None, float("nan"), 1e999, True)),
        *([1.0, 0.0, x, 1.0, 8] for x in (0.5, True, 2**70, -1, 10**400, "1")),
        *([1.0, 0.0, 0, x, 8] for x in (None, 0.0, float("nan"), True)),
        *([1.0, 0.0, 0, 1.0, x] for x in (None, 0.5, 2**70, -1)),
        [1.0, 0], [1.0], None, {},
    ],
)  # fmt: skip
def test_cache_passes_over_entries_that_are_no_costs_and_names_the_file_once(cache, entry, caplog):
    store = cost_cache.CostCache("here")
    store.put("good", one(1.0, 2))
    store.save()
    doc = json.loads(store.path.read_text())
    doc["ops"]["op\x1b[2J"] = entry
    store.path.write_text(json.dumps(doc))
    for _ in range(2):
        again = cost_cache.CostCache("here")
        assert again.get("op\x1b[2J") is None
        assert again.get("good") == one(1.0, 2)
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert str(store.path) in said
    assert "1 of 2 entries" in said
    assert "\x1b" not in said
    again.put("more", one(3.0, 4))
    again.save()
    assert json.loads(store.path.read_text())["ops"] == {
        "good": [1.0, 0.5, 2, 1.0, 8],
        "more": [3.0, 0.5, 4, 1.0, 8],
    }


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"format": 1}', '{"ops": %s}' % ("9" * 5000), "\x00"])
def test_a_damaged_cache_is_named_once(cache, text, caplog):
    store = cost_cache.CostCache("here")
    cache.mkdir()
    store.path.write_text(text)
    assert cost_cache.CostCache("here").get("op") is None
    assert cost_cache.CostCache("here").get("op") is None
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert str(store.path) in said


def test_a_pipe_or_a_folder_in_the_cache_holds_nothing_up(cache):
    store = cost_cache.CostCache("here")
    cache.mkdir()
    for make in (os.mkfifo, os.mkdir):
        make(store.path)
        assert cost_cache.CostCache("here").get("op") is None
        store.put("op", one(1.0, 2))
        store.save()
        (os.unlink if make is os.mkfifo else os.rmdir)(store.path)


WRITER = """
import sys
from rekindle.torch.costs.cache import CostCache
from rekindle.torch.costs.cache import Measurement
number, start = int(sys.argv[1]), sys.stdin.readline()
for i in range(25):
    cache = CostCache("here")
    cache.put(f"op {number} {i}", Measurement(float(number + 1), 0.5, i, 1.0, 8))
    cache.save()
"""


@sweep
def test_four_processes_that_write_at_once_keep_all_entries(cache):
    run = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*run, str(n)], stdin=subprocess.PIPE, text=True) for n in range(4)]
    for w in writers:
        w.stdin.write("go\n")
        w.stdin.close()
    assert [w.wait(timeout=300) for w in writers] == [0] * 4
    ops = json.loads(cost_cache.CostCache("here").path.read_text())["ops"]
    assert ops == {f"op {n} {i}": [float(n + 1), 0.5, i, 1.0, 8] for n in range(4) for i in range(25)}
    assert len(list(cache.iterdir())) == 1, "no lock stays behind"


def test_where_folders_cannot_be_locked_a_file_is(cache, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    cache.mkdir()
    with files.locked(cache):
        assert (cache / ".lock").exists()
        with pytest.raises(TimeoutError), files.locked(cache, 0.05):
            pass
        store = cost_cache.CostCache("here")
        monkeypatch.setattr(cost_cache, "LOCK_WAIT_S", 0.05)
        store.put("op", one(1.0, 2))
        store.save()  # it gives up, and loses nothing but time
        assert not store.path.exists()
    store.save()
    assert [p.name for p in cache.iterdir()] == [store.path.name]
    old = cache / ".lock"
    old.touch()
    os.utime(old, (0, 0))  # a process that died left it behind
    with files.locked(cache, 1.0):
        pass
    assert not old.exists()


def test_cache_keeps_what_another_process_wrote():
    first, other = cost_cache.CostCache("here"), cost_cache.CostCache("here")
    first.put("a", one(1.0, 2))
    other.put("b", one(3.0, 4))
    first.save()
    other.save()
    both = cost_cache.CostCache("here")
    assert (both.get("a"), both.get("b")) == (one(1.0, 2), one(3.0, 4))
    assert cost_cache.CostCache("there").get("a") is None
