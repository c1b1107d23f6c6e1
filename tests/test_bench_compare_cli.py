"""bench/compare.py from end to end, on stand-ins for tilesim: nothing here depends on real time."""

import os
import shutil
import signal
import subprocess
import sys
import time

import compare
import pytest
from bench_calls import call, call_json, environment, make_checkout


@pytest.fixture
def configs(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"mine": {"configuration": {"heads": 1, "kv_tile": 256}}}')
    return path


COMPILES = "17.2 if calls == 1 else "


@pytest.mark.parametrize(
    ("head_s", "outcome", "status", "samples"),
    [("0.0305", "no regression", 0, 9), ("0.0345", "regression", 1, 18), ("0.0270", "faster", 0, 9)],
)
def test_checkouts_are_judged_on_steady_calls(tmp_path, configs, head_s, outcome, status, samples):
    base = make_checkout(tmp_path / "base", COMPILES + "0.0305")
    head = make_checkout(tmp_path / "head", COMPILES + head_s)
    got_status, (entry,) = call_json(tmp_path, base, head, "--configs", configs, "--rounds", 9)
    assert (got_status, entry["name"], entry["outcome"]) == (status, "mine", outcome)
    # What seems slower runs as many rounds again.
    assert len(entry["base"]["samples_s"]) == len(entry["head"]["samples_s"]) == samples
    assert entry["base"]["first_call_s"] == pytest.approx(17.2)
    assert entry["base"]["samples_s"] == pytest.approx([0.0305] * samples)
    assert entry["median_ratio"] == pytest.approx(float(head_s) / 0.0305)


def test_short_calls_are_timed_in_a_row_and_the_floor_counts(tmp_path, configs):
    base, head = (make_checkout(tmp_path / name, s) for name, s in (("base", "2.0e-6"), ("head", "2.6e-6")))
    status, (entry,) = call_json(tmp_path, base, head, "--configs", configs)
    assert (status, entry["outcome"]) == (0, "no regression")
    assert "below the floor" in entry["reason"]
    assert call(tmp_path, base, head, "--configs", configs, "--floor-us", "0.1").returncode == 1


def test_sides_take_turns_and_swap_them(tmp_path, configs):
    log = f"""
def attention(q, k, v, **options):
    global now_s
    now_s += 1.0
    with open({str(tmp_path / "log")!r}, "a") as file:
        file.write(Path(__file__).parents[1].name[0])
"""
    base, head = (make_checkout(tmp_path / name, "1.0", log) for name in ("base", "head"))
    assert call(tmp_path, base, head, "--configs", configs, "--rounds", 7).returncode == 0
    rounds = ["bbhh", "hhbb"] * 3 + ["bbhh"]  # a call to wake up, and the timed one
    assert (tmp_path / "log").read_text() == "bbhh" + "".join(rounds)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("raise ImportError('no compiler')", "head: ImportError: no compiler"),
        ("import os; os._exit(3)", "head: process ended with status 3: no message"),
        ("import sys; sys.exit('gave up')", "head: process ended with status 1: gave up"),
        ("def attention(*_, **__): raise ValueError('bad\\ntile')", "head: ValueError: bad tile"),
    ],
)
def test_a_side_that_fails_is_an_error_of_this_entry(tmp_path, configs, broken, reason):
    base = make_checkout(tmp_path / "base", "1.0")
    head = make_checkout(tmp_path / "head", "1.0", broken)
    status, (entry,) = call_json(tmp_path, base, head, "--configs", configs)
    assert (status, entry["outcome"], entry["reason"]) == (2, "error", reason)


def test_an_unknown_field_is_an_error_and_other_configurations_go_on(tmp_path, configs):
    configs.write_text('{"bad": {"configuration": {"rows": 1}}, "good": {"configuration": {}}}')
    base = make_checkout(tmp_path / "base", "1.0")
    done = call(tmp_path, base, base, "--configs", configs)
    assert done.returncode == 2
    assert "got 'rows'; must be one of" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 error, 1 no regression"


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commits_are_exported_and_the_working_tree_is_a_dot(tmp_path, configs):
    repository = make_checkout(tmp_path / "repository", "1.0")
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "fast")
    shutil.rmtree(repository / "tilesim")
    make_checkout(repository, "1.5")
    git(repository, "commit", "-qam", "slow")
    status = {
        (base, head): call(tmp_path, base, head, "--configs", configs, cwd=repository).returncode
        for base, head in (("HEAD~1", "HEAD"), ("HEAD", "."), ("HEAD~1", "."), ("HEAD", "HEAD~1"))
    }
    assert list(status.values()) == [1, 0, 1, 0]
    done = call(tmp_path, "HEAD~7", "HEAD", cwd=repository)
    assert done.returncode == 2
    assert done.stderr.startswith("compare.py: side: got 'HEAD~7'; must be a directory, a commit")
    assert not (repository / ".git" / "worktrees").exists()


@pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("git") is None, reason="needs POSIX signals and git"
)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_export(tmp_path, configs, sent):
    started = tmp_path / "started"
    hang = f"""
import os
def attention(*_, **__):
    Path({str(started)!r}).with_name(f"started.{{os.getpid()}}").touch()
    time.sleep(600)
"""
    repository = make_checkout(tmp_path / "repository", "1.0", hang)
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "hangs")
    command = [sys.executable, compare.__file__, "HEAD", "HEAD", "--configs", str(configs)]
    process = subprocess.Popen(
        command, env=environment(tmp_path), cwd=repository, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("started.*")) and process.poll() is None:
        time.sleep(0.02)
    assert len(list((tmp_path / "tmp").iterdir())) == 2
    process.send_signal(sent)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert complaint == "compare.py: interrupted\n"
    assert not list((tmp_path / "tmp").iterdir())
    (worker,) = (int(path.suffix[1:]) for path in tmp_path.glob("started.*"))
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "required: base, head"),
        (("a.json", "."), "both must be .json files or neither"),
        (("a.json", "b.json"), "a.json: got no readable file"),
        ((".", ".", "--rounds", "6"), "got '6'; must be an integer >= 7"),
        ((".", ".", "--threshold", "nan"), "got 'nan'; must be a number >= 0"),
        ((".", ".", "--floor-us", "-1"), "got '-1'; must be a number >= 0"),
        ((".", ".", "--configs", "no.json"), "no.json: got no readable file"),
        (("/", "/"), "got a tree without tilesim/__init__.py"),
        (("--", "-x", "HEAD"), "got '-x'; must be a directory, a commit"),
    ],
)
def test_bad_usage_is_one_line(tmp_path, arguments, complaint):
    done = call(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert complaint in done.stderr
