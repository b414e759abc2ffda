"""The rules of ARCHITECTURE.md about who may import from whom, and what breaks them."""

import re
from dataclasses import dataclass
from fnmatch import fnmatch

VMM = "vmm"
MOST_LOOSE_FILES = 6
# A circle of up to this number of files inside one folder of vmm/src is one subject in two files.
ALLOWED_INSIDE_FOLDER = 2
FOLDERS_HEADING = "## The order of the folders"
PACKAGES_HEADING = "## The order of the packages"
# Imports outside of vmm/src that may close a circle: (package, importing files, defining files, why), files by patterns
# like "cpu/src/decode/*". None is needed today.
EXCEPTED = []
BLOCK = r"^{}\n(?:(?!## ).*\n)*?```text\n((?:(?!```).*\n)*)```"


class Unreadable(Exception):
    """ARCHITECTURE.md does not say what it must."""


@dataclass
class Order:
    """What ARCHITECTURE.md says."""

    # From top to bottom; folders end in a slash.
    folders: list
    # Packages that each package may depend on, and those that only its tests may.
    knows: dict
    tests_know: dict


def read_order(repository):
    text = (repository / "ARCHITECTURE.md").read_text()
    folders = [line.split()[0] for line in block(text, FOLDERS_HEADING)]
    knows, tests_know = {}, {}
    for line in block(text, PACKAGES_HEADING):
        name, _, rest = line.partition(":")
        known, _, in_tests = rest.partition("; in tests:")
        knows[name.strip()] = known.split()
        tests_know[name.strip()] = in_tests.split()
    return Order(folders, knows, tests_know)


def block(text, heading):
    """The lines of the first block of text behind a heading."""
    match = re.search(BLOCK.format(re.escape(heading)), text, re.MULTILINE)
    if match is None:
        raise Unreadable(f"ARCHITECTURE.md has no block ```text under the heading '{heading}'")
    return [line for line in match[1].splitlines() if line.strip()]


def place_of(file):
    """The folder of vmm/src that a file is in, or the loose file itself. What `a.rs` declares in `a/` is with it."""
    return file.removeprefix("vmm/src/").split("/")[0] + ("/" if file.count("/") > 2 else "")


def places(package):
    """{file: place}. The crate's roots only name what there is, and stand nowhere."""
    folders = {place_of(file) for file in package.files if place_of(file).endswith("/")}
    result = {}
    for file in package.files:
        place = place_of(file)
        beside = place.removesuffix(".rs") + "/"
        if place not in ("lib.rs", "main.rs"):
            result[file] = beside if beside in folders else place
    return result


def between(imports, place):
    """Imports between places: {(from, to): [(importing file, defining file, names)]}."""
    arrows = {}
    for (user, file), names in sorted(imports.items()):
        if user in place and file in place and place[user] != place[file]:
            arrows.setdefault((place[user], place[file]), []).append((user, file, names))
    return arrows


def circles(edges):
    """Sets of nodes each of which leads to each other, the largest first."""
    after = {}
    for begin, end in edges:
        after.setdefault(begin, set()).add(end)
    reached = {node: reachable(after, node) for node in after}
    found = {
        frozenset(other for other in reached[node] if node in reached.get(other, ()))
        for node in after
        if node in reached[node]
    }
    return sorted((sorted(circle) for circle in found), key=lambda circle: (-len(circle), circle))


def reachable(after, node):
    seen, rest = set(), [node]
    while rest:
        new = after.get(rest.pop(), set()) - seen
        seen |= new
        rest += new
    return seen


def shortest_way_round(circle, edges):
    """A shortest way from the circle's first node that has one back to itself."""
    after = {node: sorted(end for begin, end in edges if begin == node and end in circle) for node in circle}
    best = None
    for start in circle:
        ways, seen = [[start]], set()
        while ways:
            way = ways.pop(0)
            if way[-1] == start and len(way) > 1:
                best = way if best is None or len(way) < len(best) else best
                break
            for following in after[way[-1]]:
                if following not in seen:
                    seen.add(following)
                    ways.append([*way, following])
    return best


def circle_line(where, kind, circle, edges):
    way = " -> ".join(shortest_way_round(circle, edges))
    return f"{where}: {len(circle)} {kind} form a circle ({way}): {' '.join(circle)}"


def counted_imports(package):
    """Imports that may not close a circle."""
    return {
        (user, file): names
        for (user, file), names in package.imports.items()
        if not any(
            name == package.name and fnmatch(user, users) and fnmatch(file, files)
            for name, users, files, _ in EXCEPTED
        )
    }


def upward_arrows(order, arrows):
    """Arrows between folders that lead to one that stands higher."""
    height = {place: -number for number, place in enumerate(order.folders)}
    return {
        (begin, end): imports
        for (begin, end), imports in arrows.items()
        if begin in height and end in height and height[end] > height[begin]
    }


def inner_circles(package, place):
    """Circles of files that are in one folder of vmm/src: (folder, files, edges)."""
    for folder in sorted(set(place.values())):
        edges = [edge for edge in package.imports if all(place.get(file) == folder for file in edge)]
        for circle in circles(edges):
            yield folder, circle, edges


def loose_files(repository):
    return sorted(path.name for path in (repository / "vmm/src").glob("*.rs"))


def wrong_in_vmm(package, order, repository):
    place = places(package)
    arrows = between(package.imports, place)
    for missing in sorted(set(place.values()) - set(order.folders)):
        yield f"vmm/src/{missing}: ARCHITECTURE.md, '{FOLDERS_HEADING[3:]}', does not say where it stands"
    for gone in order.folders:
        if gone not in place.values():
            yield f"vmm/src/{gone}: ARCHITECTURE.md, '{FOLDERS_HEADING[3:]}', names it, but it is not there"
    for (begin, end), imports in upward_arrows(order, arrows).items():
        for user, file, names in imports:
            yield f"{user}: imports {', '.join(sorted(names))} from {file}, but {end} stands above {begin}"
    for circle in circles(arrows):
        yield circle_line("vmm/src", "folders", circle, arrows)
    for folder, circle, edges in inner_circles(package, place):
        if len(circle) > ALLOWED_INSIDE_FOLDER:
            yield circle_line(f"vmm/src/{folder}", "files", circle, edges)
    loose = loose_files(repository)
    if len(loose) > MOST_LOOSE_FILES:
        yield f"vmm/src: {len(loose)} files lie loose there, and {MOST_LOOSE_FILES} may: {' '.join(loose)}"


def wrong_in_package(package):
    edges = counted_imports(package)
    for circle in circles(edges):
        yield circle_line(package.folder, "files", circle, edges)


def dependencies(manifest, kinds):
    return {name for kind in kinds for table in tables(manifest, kind) for name in table}


def tables(manifest, kind):
    yield manifest.get(kind, {})
    for target in manifest.get("target", {}).values():
        yield target.get(kind, {})


def wrong_between_packages(packages, order):
    ours = {package.name for package in packages}
    title = PACKAGES_HEADING[3:]
    for package in packages:
        if package.name not in order.knows:
            yield f"{package.folder}: ARCHITECTURE.md, '{title}', does not say whom it may know"
            continue
        for kinds, allowed, what in (
            (("dependencies", "build-dependencies"), order.knows[package.name], "depends on"),
            (("dev-dependencies",), order.knows[package.name] + order.tests_know[package.name], "has tests that depend on"),
        ):
            for name in sorted(dependencies(package.manifest, kinds) & ours - set(allowed)):
                yield f"{package.folder}/Cargo.toml: {package.name} {what} {name}, which it must not know"
    for name in sorted(order.knows.keys() - ours):
        yield f"{name}: ARCHITECTURE.md, '{title}', names this package, but it is not there"


def wrong(repository, packages):
    """All that breaks a rule, a line each."""
    order = read_order(repository)
    lines = []
    for package in packages:
        lines += wrong_in_vmm(package, order, repository) if package.name == VMM else wrong_in_package(package)
    return lines + list(wrong_between_packages(packages, order))


def figures(repository, packages, words):
    """(what is counted, how many) of today's tree."""
    order = read_order(repository)
    vmm = next(package for package in packages if package.name == VMM)
    place = places(vmm)
    arrows = between(vmm.imports, place)
    upward = upward_arrows(order, arrows)
    of_folders = circles(arrows)
    inside = [circle for _, circle, _ in inner_circles(vmm, place)]
    elsewhere = [circle for package in packages if package.name != VMM for circle in circles(counted_imports(package))]
    yield "folders of vmm/src", sum(name.endswith("/") for name in set(place.values()))
    yield "loose files of vmm/src", len(loose_files(repository))
    yield "arrows between folders and loose files of vmm/src", len(arrows)
    yield "imports between them, by file", sum(map(len, arrows.values()))
    yield "arrows upward", len(upward)
    yield "imports upward, by file", sum(map(len, upward.values()))
    yield "circles of folders", len(of_folders)
    yield "longest circle of folders", max(map(len, of_folders), default=0)
    yield "circles of files inside folders of vmm/src", len(inside)
    yield "longest circle of files inside a folder", max(map(len, inside), default=0)
    yield "circles of files in other packages", len(elsewhere)
    yield "longest circle of files in other packages", max(map(len, elsewhere), default=0)
    yield from words_in(repository, words)


def words_in(repository, words):
    files = [path for folder in ("vmm/src", "vmm/cli") for path in (repository / folder).rglob("*.rs")]
    texts = [path.read_text() for path in files]
    for word in words:
        pattern = re.compile(rf"\b{re.escape(word)}\b")
        yield f"files of vmm with the word {word}", sum(bool(pattern.search(text)) for text in texts)
