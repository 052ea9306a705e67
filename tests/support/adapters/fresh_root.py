"""Play the steps of a Dockerfile in fresh root directories, where no container can be built.

Each stage is a copy-on-write root over this machine's own, without its homes and work trees, which stands for the base
image: so the versions of Python and of the system are this machine's, and the rest is the Dockerfile's.  The program
runs as the Dockerfile's user, with the root read-only.  It needs root, `unshare` and overlayfs.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

HIDDEN = ("/root", "/home", "/work", "/tmp", "/src", "/var/lib/fairsched", "/etc/fairsched", "/opt/fairsched")
"""What no image has of this machine."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WORD = re.compile(r"\$\{?(\w+)\}?")


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, each with its arguments; lines that go on are one."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    split = [line.partition(" ") for line in lines if line.strip()]
    return [(word.upper(), rest.strip()) for word, _, rest in split]


@attrs.define
class Stage:
    """A root directory: `upper` has what its steps wrote, at the paths that they have inside."""

    folder: Path
    env: dict[str, str] = attrs.field(factory=lambda: {"PATH": _PATH})
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    health: Sequence[str] = ()

    def __attrs_post_init__(self) -> None:
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        for hidden in HIDDEN:
            self.at(hidden).mkdir(parents=True)
            # An opaque folder has nothing of the one below it.
            os.setxattr(self.at(hidden), "trusted.overlay.opaque", b"y")
        self.at("/tmp").chmod(0o1777)

    def at(self, path: str) -> Path:
        """Where a path of the root is here; only of what was written there."""
        return self.folder / "upper" / path.lstrip("/")

    def argv(self, command: Sequence[str], *, volumes: Sequence[str] | None = None, user: str = "") -> list[str]:
        """A command line that runs a command in the root, and leaves no mount behind.

        With `volumes` the root is read-only but for these folders, which are empty and the user's.
        """
        root = shlex.quote(str(self.folder / "root"))
        options = f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        steps = [
            f"mount -t overlay overlay -o {shlex.quote(options)} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --bind /dev {root}/dev",
        ]
        uid, _, gid = (user or self.user).partition(":")
        if volumes is not None:
            steps.append(f"mount -o remount,ro {root}")
            steps += [f"mount -t tmpfs -o uid={uid},gid={gid} tmpfs {root}{volume}" for volume in volumes]
        words = ["env", "-i", *(f"{name}={value}" for name, value in self.env.items()), *command]
        inside = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}"
        last = f"exec chroot --userspec={uid}:{gid or uid} {root} /bin/sh -c {shlex.quote(inside)}"
        return ["unshare", "--mount", "/bin/sh", "-ec", "; ".join([*steps, last])]


def build(dockerfile: Path, context: Path, folder: Path, env: Mapping[str, str]) -> Stage:
    """Play all steps; returns the last stage.  `env` is what steps see beside the Dockerfile's variables.

    Raises `subprocess.CalledProcessError` for a RUN that fails, and `ValueError` for an instruction that is not known.
    """
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for word, rest in instructions(dockerfile.read_text()):
        if word == "FROM":
            _, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(folder / (name or "final"))
            continue
        assert stage is not None
        if word == "WORKDIR":
            stage.workdir = rest
            stage.at(rest).mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            stage.env |= _variables(rest, stage.env)
        elif word == "COPY":
            _copy(stage, stages, context, shlex.split(rest))
        elif word == "RUN":
            command = ["env", *(f"{name}={value}" for name, value in env.items()), "/bin/sh", "-c", rest]
            subprocess.run(stage.argv(command, user="0:0"), check=True)
        elif word == "USER":
            stage.user = rest
        elif word in ("ENTRYPOINT", "CMD"):
            setattr(stage, {"ENTRYPOINT": "entrypoint", "CMD": "command"}[word], json.loads(rest))
        elif word == "HEALTHCHECK":
            stage.health = json.loads(rest[rest.index("[") :])
        elif word != "EXPOSE":
            raise ValueError(f"{dockerfile}: {word} is not known here")
    assert stage is not None
    return stage


def _variables(pairs: str, known: Mapping[str, str]) -> dict[str, str]:
    """The variables that an ENV sets, with those that it names filled in."""
    found = {}
    for pair in shlex.split(pairs):
        name, _, value = pair.partition("=")
        found[name] = _WORD.sub(lambda word: known.get(word[1], ""), value)
    return found


def _copy(stage: Stage, stages: Mapping[str, Stage], context: Path, words: list[str]) -> None:
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].folder / "upper"
    *froms, to = words
    for each in froms:
        path = source / each.lstrip("/")
        place = stage.at(os.path.join(stage.workdir, to))
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(
                path, place, symlinks=True, dirs_exist_ok=True, ignore=None if source != context else ignored
            )
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place / path.name)
