"""Reads one Rust file as far as imports need it: modules, names that are defined, names that are used."""

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*)
  | (?P<block>/\*)
  | (?P<raw>(?:b|c)?r(?P<hashes>\#*)")
  | (?P<string>(?:b|c)?"(?:[^"\\]|\\.)*")
  | (?P<char>b?'(?:[^'\\\n]|\\(?:x..|u\{[^}]*\}|.))')
  | (?P<lifetime>'\w+)
  | (?P<name>(?:r\#)?[A-Za-z_]\w*)
  | (?P<number>\d\w*)
  | (?P<sign>::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
NAME = re.compile(r"(?:r#)?[A-Za-z_]\w*\Z")
OPENING, CLOSING = "([{", ")]}"
# What is followed by the name that it defines.
DEFINING = {"struct", "enum", "union", "trait", "type", "const", "static", "fn"}
# Items that end at a semicolon, whatever braces come before it.
UNTIL_SEMICOLON = {"use", "static", "type", "let", "const"}
WITH_BODY = {"fn", "impl", "mod", "trait", "enum", "union", "struct", "unsafe", "async", "extern", "macro_rules"}


@dataclass
class Module:
    """One module: a file, or a `mod name { .. }` inside one."""

    name: str
    file: object
    # Where the files of its children are looked for.
    folder: object
    parent: "Module | None" = None
    children: dict = field(default_factory=dict)
    defined: set = field(default_factory=set)
    # The path that each imported name stands for; those of `pub use` are in `exported` too.
    imports: dict = field(default_factory=dict)
    exported: set = field(default_factory=set)
    globs: list = field(default_factory=list)
    # Paths of two names or more outside of imports, and all names that stand alone or begin a path.
    paths: set = field(default_factory=set)
    names: set = field(default_factory=set)
    # Children with files of their own: name, and the file if an attribute says so.
    declared: list = field(default_factory=list)

    @property
    def root(self):
        return self.parent.root if self.parent else self

    def all(self):
        yield self
        for child in self.children.values():
            yield from child.all()


def tokens_of(text):
    """Without comments, and without what strings say, except that plain strings keep their quotes."""
    tokens, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        at = match.end()
        kind = match.lastgroup
        if match["block"]:
            at = end_of_comment(text, at)
        elif match["raw"] is not None:
            end = text.find('"' + match["hashes"], at)
            at = len(text) if end < 0 else end + 1 + len(match["hashes"])
            tokens.append('""')
        elif kind not in ("skip", "char", "lifetime", "number"):
            tokens.append(match[0])
        elif kind != "skip":
            tokens.append("0")
    return tokens


def end_of_comment(text, at):
    """The end of a comment that began before `at`; such comments nest."""
    depth = 1
    while depth and (edge := COMMENT_EDGE.search(text, at)):
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at if depth == 0 else len(text)


def is_name(token):
    return NAME.match(token) is not None


def closing(tokens, at):
    """Where the bracket closes that opens at `at`."""
    depth = 0
    for index in range(at, len(tokens)):
        if tokens[index] in OPENING:
            depth += 1
        elif tokens[index] in CLOSING:
            depth -= 1
            if depth == 0:
                return index
    return len(tokens) - 1


def is_for_tests(attribute):
    """Whether the attribute, as tokens, leaves something out of everything but tests."""
    if attribute[:2] != ["cfg", "("] or "test" not in attribute:
        return attribute == ["test"]
    at = attribute.index("test")
    return attribute[at - 2 : at] != ["not", "("]


def end_of_item(tokens, at):
    """The place behind the item, field, arm or statement that begins at `at`, attributes of its own included."""
    while tokens[at : at + 1] == ["#"]:
        at = closing(tokens, at + 1) + 1
    if tokens[at : at + 1] == ["pub"]:
        at = closing(tokens, at + 1) + 1 if tokens[at + 1 : at + 2] == ["("] else at + 1
    word, following = (tokens[at : at + 2] + ["", ""])[:2]
    has_body = word in WITH_BODY or (word == "const" and following in ("fn", "unsafe"))
    ends = ";" if has_body or word in UNTIL_SEMICOLON else ";,"
    while at < len(tokens):
        token = tokens[at]
        if token in CLOSING:
            return at
        if token in OPENING:
            at = closing(tokens, at)
            if token == "{" and has_body:
                return at + 1
        elif token in ends:
            return at + 1
        at += 1
    return at


def import_tree(tokens, at, prefix):
    """The leaves of the tree of an import that begins at `at`, as (path, name it gets), and the place behind it."""
    path, leaves = list(prefix), []
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            at += 1
            while tokens[at] != "}":
                found, at = import_tree(tokens, at, path)
                leaves += found
                if tokens[at] == ",":
                    at += 1
            return leaves, at + 1
        if token == "*":
            return [(path, "*")], at + 1
        if is_name(token):
            if token == "self" and prefix and path == list(prefix):
                pass  # `a::{self}` is `a` itself.
            else:
                path.append(token.removeprefix("r#"))
            if tokens[at + 1] == "as":
                return [(path, tokens[at + 2])], at + 3
            if tokens[at + 1] != "::":
                return [(path, path[-1])], at + 1
        elif token in ",};":
            return leaves, at
        at += 1
    return leaves, at


def is_public(tokens, at):
    """Whether what begins at `at` has a `pub` before it."""
    if at and tokens[at - 1] == ")":
        while at and tokens[at] != "(":
            at -= 1
    return at > 0 and tokens[at - 1] == "pub"


def read(module, text):
    """Fills `module`, and the modules inside it, from the text of its file."""
    tokens = tokens_of(text)
    fill(module, tokens, 0, len(tokens))


def fill(module, tokens, at, end):
    depth, path_of_next = 0, None
    while at < end:
        token = tokens[at]
        following = tokens[at + 1] if at + 1 < end else ""
        if token == "#" and following in ("[", "!"):
            opening = at + 1 if following == "[" else at + 2
            last = closing(tokens, opening)
            attribute = tokens[opening + 1 : last]
            at = last + 1
            if is_for_tests(attribute):
                if following == "!":
                    return
                at = end_of_item(tokens, at)
            elif attribute[:2] == ["path", "="]:
                path_of_next = attribute[2].strip('"')
            continue
        if token == "use" and following != "<":
            leaves, behind = import_tree(tokens, at + 1, [])
            for path, name in leaves:
                add_import(module, path, name, is_public(tokens, at))
            at = behind
            continue
        if token == "mod" and depth == 0 and is_name(following):
            if tokens[at + 2] == ";":
                module.declared.append((following.removeprefix("r#"), path_of_next))
                path_of_next = None
            elif tokens[at + 2] == "{":
                last = closing(tokens, at + 2)
                child = Module(following, module.file, module.folder / following, module)
                module.children[following] = child
                fill(child, tokens, at + 3, last)
                at = last
            at += 1
            continue
        if token in OPENING:
            depth += 1
        elif token in CLOSING:
            depth -= 1
        elif token == "macro_rules" and following == "!":
            module.defined.add(tokens[at + 2])
            at += 3
            continue
        elif depth == 0 and token in DEFINING and is_name(following):
            module.defined.add(following.removeprefix("r#"))
            at += 2
            continue
        elif is_name(token) and tokens[at - 1 : at] not in (["::"], ["."]):
            at = add_path(module, tokens, at)
            continue
        at += 1


def add_import(module, path, name, public):
    if name == "*":
        module.globs.append(tuple(path))
    elif path:
        # Several traits may be imported as `_`.
        key = f"_{len(module.imports)}" if name == "_" else name.removeprefix("r#")
        module.imports[key] = tuple(path)
        if public and name != "_":
            module.exported.add(key)


def add_path(module, tokens, at):
    path = [tokens[at].removeprefix("r#")]
    while tokens[at + 1 : at + 2] == ["::"] and at + 2 < len(tokens) and is_name(tokens[at + 2]):
        at += 2
        path.append(tokens[at].removeprefix("r#"))
    module.names.add(path[0])
    if len(path) > 1:
        module.paths.add(tuple(path))
    return at + 1
