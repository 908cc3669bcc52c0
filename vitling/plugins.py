"""Plug-ins: code of a user's own that registers models, methods, recipes and data sources. Free of torch until one is imported.

Installed packages name theirs in the entry points `vitling.plugins`: they are imported when the first name is looked up. A file,
a package or a module is imported by `import_plugin`, and only then: what a run or a model says that it needs is compared with
what is there, never imported on its word.
"""

import hashlib
import keyword
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from threading import RLock
from types import ModuleType
from typing import Annotated, Any, TypedDict

from vitling.errors import UserError, first_line
from vitling.files import check_path, write_bytes
from vitling.validation.values import Longest, show

GROUP = "vitling.plugins"  # of entry points
_INSTALLED = {"site-packages", "dist-packages"}
Text = Annotated[str, Longest(4096)]


class PluginRecord(TypedDict, total=False):
    """What a run, and a saved model, say of a plug-in."""

    name: Text  # of its module
    source: Text  # what was imported: a file, a folder or a module; empty where it is installed
    package: Text  # and its version, where it is installed
    sha256: Text
    provides: dict[str, list[Text]]


@dataclass(frozen=True)
class Plugin:
    """Code that has been imported, and what it registered."""

    name: str
    source: str = ""
    package: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)  # by their name below the folder that it was found in
    provides: Mapping[str, list[str]] = field(default_factory=dict)
    sha256: str = ""

    def to_record(self) -> PluginRecord:
        provides = {kind: list(names) for kind, names in self.provides.items() if names}
        return {
            "name": self.name,
            "source": self.source,
            "package": self.package,
            "sha256": self.sha256,
            "provides": provides,
        }


_loaded: dict[str, Plugin] = {}  # by the name of its module
_installed_done = False
_lock = RLock()  # of the same thread again: a plug-in that is being imported looks names up


def import_plugin(source: str | os.PathLike) -> Plugin:
    """Import a .py file, a package (a folder with __init__.py) or an installed module by its name, which then registers what it has.

    A file is known by its own name from then on, as if its folder were the last on Python's path: processes that are started
    later, and pickled objects, find it, and it may import what lies beside it. The same one again changes nothing.
    """
    text = os.fspath(source)
    path = check_path(text).expanduser()
    with _lock:
        if text and (path.is_file() or path.is_dir() or path.suffix == ".py" or os.sep in text):
            return _import_path(path.resolve(), text)
        return _import_module(text)


def load_installed() -> None:
    """Import the plug-ins of installed packages, once: whoever installed them trusts them."""
    global _installed_done
    with _lock:
        if _installed_done:
            return
        _installed_done = True
        try:
            for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
                _import_entry(entry)
        except BaseException:
            _installed_done = False
            raise


def loaded_plugins() -> list[Plugin]:
    """Those that this process has imported, in that order."""
    return list(_loaded.values())


def provided(kind: str) -> dict[str, Plugin]:
    """Names of a kind that plug-ins registered."""
    return {name: plugin for plugin in loaded_plugins() for name in plugin.provides.get(kind, [])}


def plugin_records() -> list[PluginRecord]:
    """What a run keeps of those that were there when it was trained."""
    return [plugin.to_record() for plugin in loaded_plugins()]


# -- what a run needs --------------------------------------------------------------------------------------------------


def require_plugins(records: Iterable[PluginRecord], needed: Mapping[str, str], whose: str) -> None:
    """Refuse a run or a model whose names come from a plug-in that is not here, and say which: a stranger's is looked at first."""
    load_installed()
    for record in records:
        for kind, name in needed.items():
            if name in record.get("provides", {}).get(kind, []) and name not in _registered()[kind]:
                raise UserError(
                    f"{whose} needs {kind} {show(name)} of a plug-in that is not imported; {_remedy(record)}"
                )


def changed_plugins(records: Iterable[PluginRecord], needed: Mapping[str, str]) -> list[str]:
    """A line for each plug-in that provides what is needed, and is not the one that was recorded."""
    lines = []
    for record in records:
        for kind, name in needed.items():
            here = provided(kind).get(name)
            if here and name in record.get("provides", {}).get(kind, []) and here.sha256 != record.get("sha256"):
                lines.append(
                    f"the plug-in {here.source or here.package} with {kind} {name} has changed since the training"
                )
    return list(dict.fromkeys(lines))


def _remedy(record: PluginRecord) -> str:
    if package := record.get("package"):
        return f"install the package {show(package)} first."
    source = shlex.quote(record.get("source") or record.get("name", ""))  # to be copied, whatever a stranger called it
    return f"if you trust it, import {source} first (SHA-256 {show(record.get('sha256', ''))[:12]})."


# -- to other processes and machines -----------------------------------------------------------------------------------


def pack_plugins() -> list[dict[str, Any]]:
    """What another process needs to have the same plug-ins, as plain data: with their text, for machines without the files."""
    return [
        {
            "source": plugin.source,
            "package": plugin.package,
            "name": plugin.name,
            "sha256": plugin.sha256,
            "files": {name: path.read_text(encoding="utf-8") for name, path in plugin.files.items()},
        }
        for plugin in loaded_plugins()
    ]


def unpack_plugins(packed: Iterable[dict[str, Any]]) -> None:
    """Import what the process that started this one had imported; it was the user's command that did."""
    load_installed()
    for item in packed:
        if item["name"] in _loaded:
            continue
        if item["package"]:
            raise UserError(
                f"the package {item['package']} with a plug-in is not installed on this machine ({os.uname().nodename})."
            )
        is_module = not os.path.isabs(item["source"])
        if _is_found(item["name"]) if is_module else Path(item["source"]).exists():
            plugin = import_plugin(item["source"])
        else:
            folder = _write_out(item)
            if is_module:
                sys.path.append(str(folder))
                invalidate_caches()
                plugin = import_plugin(item["name"])
            else:
                first = folder / item["name"]
                plugin = import_plugin(first if first.is_dir() else first.with_suffix(".py"))
        if plugin.sha256 != item["sha256"]:
            raise UserError(
                f"the plug-in {item['source']} is another one on this machine ({os.uname().nodename}); copy it there again."
            )


def _write_out(item: dict[str, Any]) -> Path:
    """The files of a plug-in that is not on this machine, in a folder that nobody else can write to."""
    folder = Path(tempfile.gettempdir()) / f"vitling-plugin-{os.getuid()}-{item['sha256'][:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UserError(f"{folder} belongs to somebody else, who could change a plug-in in it; remove it.")
    for name, text in item["files"].items():
        assert not PurePosixPath(name).is_absolute()
        assert ".." not in PurePosixPath(name).parts
        write_bytes(folder / name, text.encode())
    return folder


def _is_found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:  # of the packages that it lies in
        return False


# -- importing ---------------------------------------------------------------------------------------------------------


def _import_path(path: Path, given: str) -> Plugin:
    if not path.exists():
        raise UserError(
            f"no plug-in at {given}; give a .py file, a folder with __init__.py, or the name of an installed module."
        )
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise UserError(f"{given} is no package (it has no __init__.py); give the .py file in it that registers.")
    if path.is_file() and path.suffix != ".py":
        raise UserError(
            f"{given} is not a Python file; a plug-in is a .py file, a folder with __init__.py, or a module."
        )
    name = path.stem if path.is_file() else path.name
    if name in _loaded and _loaded[name].source == str(path):
        return _loaded[name]
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(
            f"{given} cannot be imported under its name; rename it to letters, digits and _, such as my_model.py."
        )
    there = find_spec(name)
    if name in sys.modules or (there and there.origin not in (str(path), str(path / "__init__.py"))):
        raise UserError(f"{given} is called like a module that there is already, {name}; rename it.")
    sys.path.append(str(path.parent))
    invalidate_caches()
    try:
        return _import(name, path.parent, source=str(path), shown=given)
    except BaseException:
        sys.path.remove(str(path.parent))
        raise


def _import_module(name: str) -> Plugin:
    if name in _loaded:
        return _loaded[name]
    try:
        spec = find_spec(name) if all(map(str.isidentifier, name.split("."))) else None
    except ImportError:  # of the packages that it lies in
        spec = None
    if spec is None or spec.origin is None:
        raise UserError(
            f"no plug-in {show(name)}: neither a file or folder here nor an installed module; give a .py file, a folder with "
            "__init__.py, or a module."
        )
    depth = name.count(".") + 1 + (Path(spec.origin).name == "__init__.py")
    return _import(name, Path(spec.origin).parents[depth - 1], source=name, shown=name)


def _import_entry(entry: EntryPoint) -> None:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.name
    if entry.module in _loaded:
        return
    try:
        spec = find_spec(entry.module)
    except ImportError:
        spec = None
    shown = f"{entry.name} of the package {package}"
    if spec is None or spec.origin is None:
        raise UserError(f"the plug-in {shown} has no module {entry.module}; install it again, or uninstall it.")
    depth = entry.module.count(".") + 1 + (Path(spec.origin).name == "__init__.py")
    _import(entry.module, Path(spec.origin).parents[depth - 1], package=package, shown=shown, call=entry.attr)


def _import(name: str, folder: Path, *, shown: str, source: str = "", package: str = "", call: str = "") -> Plugin:
    """Import a module that lies below a folder, and see what it registers."""
    before, modules = _registered(), set(sys.modules)
    try:
        module = import_module(name)
        if call:
            getattr(module, call)()
    except UserError:
        _forget(_new_modules(name, modules, folder))
        raise
    except SystemExit as error:  # a script that was not meant to be imported would end us, in silence
        _forget(_new_modules(name, modules, folder))
        raise UserError(
            f'the plug-in {shown} ends the program when it is imported; put what it runs below `if __name__ == "__main__":`.'
        ) from error
    except Exception as error:  # it is somebody else's code: anything can go wrong in it
        _forget(_new_modules(name, modules, folder))
        where = f" (line {line})" if (line := _line_in(error, folder)) else ""
        raise UserError(
            f"the plug-in {shown} cannot be imported: {type(error).__name__}: {first_line(error)[:-1]}{where}."
        ) from error
    after = _registered()
    for kind, names in before.items():
        for known, thing in names.items():
            if after[kind].get(known) is not thing:
                raise UserError(f"the plug-in {shown} replaces the {kind} {known}; give its own another name.")
    files = _files_of(module, _new_modules(name, modules, folder), folder)
    plugin = Plugin(
        name,
        source,
        package,
        files,
        {kind: [known for known in names if known not in before[kind]] for kind, names in after.items()},
        _digest(files),
    )
    _loaded[name] = plugin
    return plugin


def _registered() -> dict[str, dict[str, Any]]:
    """What there is by name, of each kind. These packages lie above this one, and are there when a plug-in is imported."""
    return {
        "model": import_module("vitling.models").registered_models(),
        "method": dict(import_module("vitling.methods").METHODS),
        "data": dict(import_module("vitling.data.sources.registered").SOURCES),
        "recipe": dict(import_module("vitling.recipes.named").REGISTERED),
    }


def _new_modules(name: str, before: set[str], folder: Path) -> set[str]:
    """The plug-in's own modules of those that were imported: its package, and what lies beside it. Not what is installed."""
    top = name.partition(".")[0]
    folder = folder.resolve()

    def is_own(other: str) -> bool:
        if other.partition(".")[0] == top:
            return True
        file = getattr(sys.modules[other], "__file__", None)
        below = Path(file).resolve() if file else folder
        return (
            below.is_relative_to(folder)
            and below != folder
            and not _INSTALLED & {*folder.parts, *below.parts}
            and other.partition(".")[0] != "vitling"
        )

    return {other for other in set(sys.modules) - before if is_own(other)}


def _files_of(module: ModuleType, own: set[str], folder: Path) -> dict[str, Path]:
    """The Python files of a plug-in: its module, its whole package, and what it imported from beside it."""
    files = [getattr(sys.modules[name], "__file__", None) for name in own] + [module.__file__]
    paths = {Path(file).resolve() for file in files if file}
    if module.__file__ and Path(module.__file__).name == "__init__.py":
        paths |= {path.resolve() for path in Path(module.__file__).parent.rglob("*.py")}
    below = [path for path in paths if path.suffix == ".py" and path.is_relative_to(folder.resolve())]
    return {path.relative_to(folder.resolve()).as_posix(): path for path in sorted(below)}


def _digest(files: Mapping[str, Path]) -> str:
    """SHA-256 of names and contents."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _forget(modules: Iterable[str]) -> None:
    """What was half imported is not there: the next attempt begins anew."""
    for name in modules:
        del sys.modules[name]


def _line_in(error: Exception, folder: Path) -> int | None:
    """The last line of the plug-in that the error passed."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace:
        if Path(trace.tb_frame.f_code.co_filename).resolve().is_relative_to(folder.resolve()):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
