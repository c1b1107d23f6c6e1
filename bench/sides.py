"""The sides of a comparison: checkouts, made from commits where needed, and processes that time them."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from usage import BadInputError

WORKER = Path(__file__).with_name("timed_side.py")


@contextlib.contextmanager
def checkout(name):
    """Give the directory of a side; that of a commit is made for the occasion and removed at the end."""
    if os.path.isdir(name):
        yield _with_package(name, Path(name).resolve())
        return
    commit = _git(name, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    # An export, not a worktree: nothing is left to prune in the repository, however this ends.
    archive = _git(name, "-C", _git(name, "rev-parse", "--show-toplevel"), "archive", commit, text=False)
    with tempfile.TemporaryDirectory(prefix="tilesim-compare-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        yield _with_package(name, Path(folder).resolve())


def _with_package(name, folder):
    if not (folder / "tilesim" / "__init__.py").is_file():
        raise BadInputError(f"{name}: got a tree without tilesim/__init__.py; must be a checkout of tilesim")
    return folder


def _git(name, *arguments, text=True):
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        rule = "must be a directory, a commit of the repository here, or a .json file"
        raise BadInputError(f"side: got {name!r}; {rule}") from None
    return done.stdout.decode().strip() if text else done.stdout


class SideError(Exception):
    """A side cannot run a configuration; the message is one line."""


class TimedSide:
    """A process that runs one configuration with the tilesim of one checkout."""

    def __init__(self, folder, configuration):
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        # In a session of its own: Ctrl-C is for the parent, which ends both sides.
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
            start_new_session=True,
        )
        self.folder, self.configuration = folder, configuration
        self.first_call_s, self.second_call_s, self.samples_s = None, None, []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        # Closing flushes what a dead process no longer reads.
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.complaints.close()

    def start(self):
        """Make the first call, which compiles or loads the kernels."""
        answer = self._ask(self.configuration)
        package = Path(answer["package"]).resolve()
        if package.parent != self.folder:
            raise SideError(f"runs {package}; must be the tilesim of {self.folder}")
        self.first_call_s, self.second_call_s = answer["first_call_s"], answer["second_call_s"]

    def take_sample(self, calls):
        """Add the mean seconds of some calls in a row."""
        self.samples_s.append(self._ask(calls)["seconds"])

    def _ask(self, question):
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline() or "{}")
        except BrokenPipeError:
            answer = {}
        if not answer:
            self.complaints.seek(0)
            last = self.complaints.read().decode(errors="replace").strip().splitlines()[-1:]
            raise SideError(
                f"process ended with status {self.process.wait()}: {''.join(last) or 'no message'}"
            )
        if "error" in answer:
            raise SideError(" ".join(answer["error"].split()))
        return answer
