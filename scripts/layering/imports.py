"""Which file of a package takes what from which: paths are followed to the file that defines what they name."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from layering.rust import Module, read

EXTERNAL = "external"
# What the names of packages begin with where they are published; in the workspace they go without it.
PREFIX = "ttvm-"


@dataclass
class Package:
    """A package of the workspace: its modules, and the imports between its files."""

    name: str
    # Both relative to the repository, as are all names of files.
    folder: str
    manifest: dict
    files: list = field(default_factory=list)
    # For (importing file, defining file) the names that are taken.
    imports: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """Something that a file defines."""

    file: Path
    name: str


class Crates:
    """The crates of one package: its library, and its programs, which may use the library by name."""

    def __init__(self, repository, folder, manifest):
        self.repository = repository
        source = repository / folder / "src"
        self.library_name = manifest.get("lib", {}).get("name", manifest["package"]["name"]).replace("-", "_")
        self.library = self.load_root(source / "lib.rs")
        programs = [source / "main.rs", *sorted((source / "bin").glob("*.rs"))]
        self.roots = [root for root in [self.library, *map(self.load_root, programs)] if root]

    def load_root(self, path):
        return self.load(Module("crate", path, path.parent)) if path.exists() else None

    def load(self, module):
        read(module, module.file.read_text())
        for inner in list(module.all()):
            for name, path in inner.declared:
                if file := self.file_of(inner, name, path):
                    # The children of mod.rs lie beside it, those of name.rs in the folder name/.
                    folder = file.parent if file.name == "mod.rs" or path else file.with_suffix("")
                    inner.children[name] = self.load(Module(name, file, folder, inner))
        return module

    @staticmethod
    def file_of(module, name, path):
        """The file that `mod name;` stands for; a path in an attribute is relative to the file's own folder."""
        if path:
            candidates = [(module.file.parent / path).resolve()]
        else:
            candidates = [module.folder / f"{name}.rs", module.folder / name / "mod.rs"]
        return next((file for file in candidates if file.exists()), None)

    def modules(self):
        return [module for root in self.roots for module in root.all()]

    def resolve(self, module, path, seen=frozenset()):
        """What a path means in a module: a Module, an Item, or EXTERNAL."""
        first, rest, here = path[0], list(path), module
        if first in ("crate", "self", "super"):
            while rest and rest[0] in ("crate", "self", "super"):
                word = rest.pop(0)
                here = here.root if word == "crate" else here.parent or here if word == "super" else here
        elif self.step(module, first, len(path) == 1, seen) is None:
            if first != self.library_name or self.library is None or module.root is self.library:
                return EXTERNAL
            here = self.library
            rest.pop(0)
        while rest:
            name = rest.pop(0)
            found = self.step(here, name, not rest, seen)
            if found is None:
                # Made by a macro, perhaps.
                return Item(here.file, name)
            if not isinstance(found, Module):
                return found
            here = found
        return here

    def step(self, module, name, is_last, seen):
        """What a name means in a module, or None if it has no such name. Only modules matter before a path's end."""
        if is_last and name in module.defined:
            return Item(module.file, name)
        if name in module.children and not (is_last and name in module.imports):
            return module.children[name]
        if name in module.defined:
            return Item(module.file, name)
        key = (id(module), name)
        if key in seen:
            return None
        seen |= {key}
        if name in module.imports:
            return self.resolve(module, module.imports[name], seen)
        for glob in module.globs:
            target = self.resolve(module, glob, seen)
            if isinstance(target, Module) and target is not module:
                found = self.step(target, name, is_last, seen)
                if found not in (None, EXTERNAL):
                    return found
        return None

    def uses(self, module):
        """(defining file, name) of all that a module takes from elsewhere in the package."""
        begun = {path[0] for path in module.paths}
        for name, path in module.imports.items():
            if name in module.exported and name not in module.names:
                continue  # A façade passes it on and does not use it.
            found = self.resolve(module, path)
            if isinstance(found, Item):
                yield found.file, found.name
            elif isinstance(found, Module) and name in module.names and name not in begun:
                yield found.file, path[-1]
        for path in module.paths:
            found = self.resolve(module, path)
            if isinstance(found, Item):
                yield found.file, found.name
        for glob in module.globs:
            target = self.resolve(module, glob)
            if isinstance(target, Item):
                yield target.file, target.name
            elif isinstance(target, Module):
                for name in module.names - module.defined - module.imports.keys() - module.children.keys():
                    found = self.step(target, name, True, frozenset())
                    if isinstance(found, Item):
                        yield found.file, found.name


def read_package(repository, folder):
    with open(repository / folder / "Cargo.toml", "rb") as file:
        manifest = tomllib.load(file)
    package = Package(manifest["package"]["name"].removeprefix(PREFIX), folder, manifest)
    crates = Crates(repository, folder, manifest)

    def relative(path):
        return path.relative_to(repository).as_posix()

    package.files = sorted({relative(module.file) for module in crates.modules()})
    for module in crates.modules():
        for file, name in crates.uses(module):
            if file != module.file:
                package.imports.setdefault((relative(module.file), relative(file)), set()).add(name)
    return package


def read_workspace(repository):
    """All packages of the workspace except those that only test."""
    with open(repository / "Cargo.toml", "rb") as file:
        members = tomllib.load(file)["workspace"]["members"]
    folders = sorted(
        path.relative_to(repository).as_posix()
        for member in members
        for path in repository.glob(member)
        if (path / "Cargo.toml").exists()
    )
    return [read_package(repository, folder) for folder in folders if folder.split("/")[0] != "tests"]
