"""The terminal at 80 columns: help, tables, errors, --debug, completion, exit codes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare_rows import changes_table
from rich.cells import cell_len

import rekindle
from command_line import COLOUR, PLAIN, Ran, assert_one_paragraph, step
from plan_documents import parts_plan
from rekindle import zoo
from rekindle.cli.answer import out_console
from rekindle.cli.app import app
from rekindle.model import formats
from rekindle.planning import registry
from rekindle.show import text
from rekindle.torch.costs import devices

COLUMNS = 80
COMMANDS = sorted(c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """80 columns, and short names of files."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERMINAL_WIDTH", str(COLUMNS))
    monkeypatch.chdir(tmp_path)
    return None


def fits(printed: str) -> bool:
    return all(cell_len(line) <= COLUMNS for line in COLOUR.sub("", printed).split("\n"))


@pytest.fixture
def plan(graph: Path) -> str:
    rekindle.plan(formats.graph_from_json(formats.read_json(graph)), budget=PLAIN, solver="none").save("plan.json")
    return "plan.json"


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_and_flags_have_no_type(capfd: pytest.CaptureFixture[str], command: str | None) -> None:
    ran = Ran(capfd, *([] if command is None else [command]), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran.out)
    assert "--debug" in ran.out
    for ugly in ("<bool>", "bool", "range", "{", "<path>", "<str>"):
        assert ugly not in ran.out


@pytest.mark.parametrize(
    ("args", "missing"),
    [(["plan"], "MODEL"), (["explain"], "PLAN"), (["compare", "a.json"], "PLAN_B"), (["solve"], "GRAPH")],
)
def test_a_missing_argument_has_the_name_that_the_help_shows(
    capfd: pytest.CaptureFixture[str], args: list[str], missing: str
) -> None:
    ran = Ran(capfd, *args)
    assert (ran.code, ran.err) == (2, f"error: Missing argument '{missing}'.\n")
    usage = COLOUR.sub("", Ran(capfd, args[0], "--help").out).split("\n")[1]
    assert missing in usage.split()


@pytest.mark.parametrize(
    "args",
    [
        ("trace", "zoo:gpt", "--target", "foo"), ("estimate", "zoo:gpt", "--target", "foo"),
        ("estimate", "zoo:gpt", "--device", "foo"), ("plan", "zoo:gpt", "--budget", "much"),
        ("solve", "graph.json", "--budget", "99999999999EiB"), ("plan", "zoo:gpt", "--budget", "0.5", "--time-limit", "-1"),
        ("plan", "zoo:gpt", "--budget", "0.5", "--time-limit", "nan"),
    ],
)  # fmt: skip
def test_an_error_names_the_option_and_no_value_of_python(
    capfd: pytest.CaptureFixture[str], graph: Path, args: tuple[str, ...]
) -> None:
    ran = Ran(capfd, *args)
    assert ran.code == 2
    assert_one_paragraph(ran.err)
    assert ran.err.startswith(f"error: {args[-2]} ")
    assert "None" not in ran.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has the device that is full")
@pytest.mark.parametrize("args", [["--help"], ["plan", "--help"], ["--version"], ["zoo"], ["zoo", "--json"]])
def test_an_output_that_cannot_be_written_is_said_in_one_way(args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rekindle", *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_after_two_dashes_no_argument_is_an_option(capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["solvers", "--", "--json"], ["solvers", "--json", "--", "--help"]):
        ran = Ran(capfd, *command)
        assert ran.code == 2
        assert command[-1] in ran.err
        assert ran.out.startswith("{") == (command[1] == "--json")


def test_a_report_with_a_long_name_is_named_whole(capfd: pytest.CaptureFixture[str], plan: str, tmp_path: Path) -> None:
    out = tmp_path / ("n" * 120 + ".html")
    assert f"wrote {out}\n" in Ran(capfd, "report", plan, "--frontier", "none", "--html", out).out


def words(printed: str) -> set[str]:
    return set(COLOUR.sub("", printed).replace("│", " ").replace(",", " ").replace(".", " ").replace(":", " ").split())


def test_help_lists_the_choices_of_solver_and_target(capfd: pytest.CaptureFixture[str]) -> None:
    said = words(Ran(capfd, "plan", "--help").out)
    assert {s.name for s in registry.all_solvers()} <= said
    assert set(devices.names()) <= said


def test_an_unknown_solver_target_or_model_names_the_choices(capfd: pytest.CaptureFixture[str], graph: Path) -> None:
    for args, choices in (
        (("solve", graph, "--budget", "1GiB", "--solver", "rotr"), {s.name for s in registry.all_solvers()}),
        (("plan", "zoo:gpt", "--budget", "0.5", "--target", "h20"), set(devices.names())),
        (("trace", "zoo:gpt", "--target", "h20"), set(devices.names())),
        (("bench", "--target", "h20"), set(devices.names())),
        (("plan", "zoo:resnet51", "--budget", "0.5"), set(zoo.names())),
        (("zoo", "--suite", "sizes"), set(zoo.SUITES)),
    ):
        ran = Ran(capfd, *args)
        assert ran.code == 2
        assert_one_paragraph(ran.err)
        assert choices <= words(ran.err)


@pytest.mark.parametrize(
    "args",
    [
        ("solvers",), ("solvers", "rotor", "auto"), ("zoo",), ("solve", "graph.json", "--budget", "1GiB", "--solver", "none"),
        ("frontier", "graph.json", "--solver", "none"), ("explain", "plan.json"), ("compare", "plan.json", "plan.json"),
        ("explain", "parts.json"), ("compare", "parts.json", "parts.json"), ("compare", "plan.json", "parts.json"),
    ],
)  # fmt: skip
def test_every_answer_fits(capfd: pytest.CaptureFixture[str], graph: Path, plan: str, args: tuple[str, ...]) -> None:
    formats.write_json("parts.json", parts_plan().to_json())
    ran = Ran(capfd, *args)
    assert ran.code == 0
    assert fits(ran.out)
    assert Ran(capfd, *args, "--json").document


RESULTS = sorted(Path(__file__).parents[2].glob("benchmarks/results/*-bench-*.jsonl"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.name)
def test_tables_of_benchmarks_fit_and_break_no_figure(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with path.open() as f:
        rows = [json.loads(line) for line in itertools.islice(f, 40)]
    out_console().print(text.bench_table(rows, "suite"))
    said = capfd.readouterr().out
    assert fits(said)
    for row in rows:
        if row["peak_mb"] is not None:
            assert f"{row['peak_mb']:,.0f}" in said or f"{row['peak_mb']:,.2f}" in said
        assert row["status"] == "ok" or row["method"] in said
    changed = [
        {"suite": r["suite"], "model": r["model"], "method": r["method"], "cost": r["cost"], "field": "peak_mb",
         "old": r["plain_mb"], "new": r["peak_mb"], "regression": True}
        for r in rows
    ]  # fmt: skip
    out_console().print(changes_table(changed))
    assert fits(capfd.readouterr().out)


def test_every_solver_and_every_model_has_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    for command, names in (("solvers", [s.name for s in registry.all_solvers()]), ("zoo", zoo.names())):
        first = [line.split()[0] for line in Ran(capfd, command).out.split("\n") if line.strip()]
        assert all(first.count(name) == 1 for name in names)


def test_details_of_a_solver(capfd: pytest.CaptureFixture[str]) -> None:
    said = Ran(capfd, "solvers", "rotor").out
    for part in ("citation", "arXiv:1911.13214", "complexity", "minimises", "optimal"):
        assert part in said
    assert [s["name"] for s in Ran(capfd, "solvers", "rotor", "--json").document["solvers"]] == ["rotor"]
    assert Ran(capfd, "solvers", "rotr").code == 2


def test_a_long_name_of_a_file_is_printed_whole(capfd: pytest.CaptureFixture[str], graph: Path, tmp_path: Path) -> None:
    out = tmp_path / ("n" * 120 + ".json")
    said = Ran(capfd, "solve", graph, "--budget", "1GiB", "--solver", "none", "--out", out).out
    assert f"wrote {out}" in said


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_and_nothing_else_does(
    capfd: pytest.CaptureFixture[str], graph: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REKINDLE_TRACEBACK", raising=False)
    args = ["solve", graph, "--budget", 1, "--solver", "none"]
    plain = Ran(capfd, *args)
    debug = Ran(capfd, *(["--debug", *args] if place == "before" else [*args, "--debug"]))
    assert (plain.code, debug.code) == (3, 3)
    assert_one_paragraph(plain.err)
    assert "Traceback" in debug.err
    assert "planner.py" in debug.err


def test_the_four_exit_codes(capfd: pytest.CaptureFixture[str], graph: Path) -> None:
    solve = ("solve", graph, "--solver", "none", "--budget")
    assert Ran(capfd, *solve, "1GiB").code == 0
    assert Ran(capfd, "solve", "nothing.json", "--budget", "1GiB").code == 1
    assert Ran(capfd, *solve, "much").code == 2
    assert Ran(capfd, *solve, 1).code == 3
    for command in ("explain", "compare"):
        files = ["nothing.json"] * (1 if command == "explain" else 2)
        assert Ran(capfd, command, *files).code == 1
        assert Ran(capfd, command, *[graph] * len(files)).code == 2
        assert Ran(capfd, command).code == 2


def complete(words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What the shell is offered after these words, of which the last one is being written."""
    environment = {**os.environ, "_REKINDLE_COMPLETE": "complete_bash", "COMP_WORDS": words, **more}
    environment["COMP_CWORD"] = str(words.count(" "))
    return subprocess.run(
        [sys.executable, "-c", "import sys; from rekindle.cli import main; sys.exit(main())"], env=environment,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rekindle so", {"solve", "solvers"}),
        ("rekindle solve graph.json --solver chen-", {"chen-greedy", "chen-recursive", "chen-sqrt"}),
        ("rekindle plan zoo:gpt --target h", {"h100", "h200"}),
        ("rekindle plan zoo:gpt --parity ", {"bitwise", "close"}),
        ("rekindle plan zoo:gpt --offload ", {"no", "yes", "auto"}),
        ("rekindle plan zoo:resnet1", {"zoo:resnet18", "zoo:resnet101", "zoo:resnet152"}),
    ],
)
def test_the_shell_is_offered_words(typed: str, offered: set[str]) -> None:
    done = complete(typed)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == offered


def test_the_script_for_a_shell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_REKINDLE_COMPLETE", "source_bash")
    ran = Ran(capfd)
    assert (ran.code, ran.err) == (0, "")
    assert "complete -o default -F" in ran.out
    monkeypatch.setenv("_REKINDLE_COMPLETE", "source_no-such-shell")
    ran = Ran(capfd)
    assert ran.code == 1
    assert "Traceback" not in ran.err


def test_explain_of_a_graph_says_how_to_make_a_plan(capfd: pytest.CaptureFixture[str], graph: Path) -> None:
    assert step().hash == formats.graph_from_json(formats.read_json(graph)).hash
    said = Ran(capfd, "explain", graph).err
    assert "holds no plan" in said
    assert "rekindle plan" in said


def test_the_docs_name_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    for command in COMMANDS:
        assert f"\n## {command}\n" in page
        assert f"rekindle {command}" in page
