"""Resources from files that a person wrote: YAML read so that nothing in it is silently lost."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pydantic
import yaml

from specdecode.api import SpecDecodeDeployment, strict
from specdecode.api.faults import Fault
from specdecode.api.names import GROUP, KIND

STDIN: Final = "-"


class UnreadableError(Exception):
    """A file that holds no resource that could be looked at; the message says why."""


@dataclass(frozen=True, slots=True)
class Authored:
    """A resource as it stands in a file."""

    name: str
    content: Any
    faults: tuple[Fault, ...]
    """Everything wrong with its shape and its rules."""

    def parse(self) -> SpecDecodeDeployment:
        """The resource, without its status, which is the operator's. Only for one without faults.

        Raises:
            UnreadableError: the API server's own part of the metadata isn't as the API server writes it.
        """
        metadata = {name: value for name, value in self.content["metadata"].items() if value is not None}
        content = {name: value for name, value in self.content.items() if name != "status"} | {"metadata": metadata}
        try:
            return SpecDecodeDeployment.parse(content)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UnreadableError(f"{self.name}: {where}: {first['msg']}: mend it, or remove it") from None


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file holds."""

    resources: tuple[Authored, ...]
    ignored: tuple[str, ...]
    """Kinds of other objects in it."""


class _Loader(yaml.SafeLoader):
    """Refuses what plain YAML drops: a key that stands twice. Times stay text, as for the API server."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"{key.value} is there twice in one map: remove one of the two"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(path: str) -> Contents:
    """All resources of a YAML (or JSON) file; ``-`` is standard input.

    Raises:
        UnreadableError: the file can't be read, isn't YAML, or holds no resource of our kind.
    """
    resources: list[Authored] = []
    ignored: list[str] = []
    for content in _documents(_text(path), path):
        for item in _items(content):
            if not _ours(item):
                ignored.append(str(item.get("kind")))
                continue
            metadata = item.get("metadata") if isinstance(item, dict) else None
            name = metadata.get("name") if isinstance(metadata, dict) else None
            shown = name if isinstance(name, str) and name else f"resource {len(resources) + 1}"
            resources.append(Authored(shown, item, tuple(strict.faults(item))))
    if not resources:
        held = f", only {', '.join(ignored)}" if ignored else ""
        raise UnreadableError(f"{path}: there is no {KIND} in it{held}")
    return Contents(tuple(resources), tuple(ignored))


def one(path: str) -> Authored:
    """The only resource of a file.

    Raises:
        UnreadableError: as `read`; also if there are several.
    """
    found = read(path).resources
    if len(found) > 1:
        names = ", ".join(resource.name for resource in found)
        raise UnreadableError(f"{path}: holds {len(found)} resources ({names}): give a file with one")
    return found[0]


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}: name a file that can be read") from None
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path}: isn't text in UTF-8 (byte {error.start}): save it as such") from None


def _documents(text: str, path: str) -> list[Any]:
    try:
        found = [content for content in yaml.load_all(text, Loader=_Loader) if content is not None]
        if any(_in_itself(content, set(), set()) for content in found):
            raise UnreadableError(f"{path}: an alias (*) stands within what it stands for: write it out")
        return found
    except RecursionError:
        raise UnreadableError(f"{path}: is nested too deeply: no resource is") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise UnreadableError(f"{path}: {where}: {getattr(error, 'problem', None) or error}") from None


def _in_itself(content: Any, above: set[int], known: set[int]) -> bool:
    """Whether a document has itself as a part. ``known`` are parts that were looked at: aliases can make them many."""
    if id(content) in above:
        return True
    if not isinstance(content, dict | list) or id(content) in known:
        return False
    known.add(id(content))
    parts = content.values() if isinstance(content, dict) else content
    return any(_in_itself(part, above | {id(content)}, known) for part in parts)


def _items(content: Any) -> list[Any]:
    """The objects of a document: one, or those of a List such as ``kubectl get -o yaml`` prints."""
    if isinstance(content, dict) and content.get("kind") == "List" and isinstance(content.get("items"), list):
        return list(content["items"])
    return [content]


def _ours(item: Any) -> bool:
    if not isinstance(item, dict):
        return True
    kind, version = item.get("kind"), item.get("apiVersion")
    return kind is None or kind == KIND or (isinstance(version, str) and version.startswith(f"{GROUP}/"))
