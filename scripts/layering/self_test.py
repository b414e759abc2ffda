"""Tries the checker on small trees, each of which keeps every rule or breaks a known one."""

import tempfile
from pathlib import Path

from layering import rules
from layering.imports import read_workspace

ARCHITECTURE = """# Architecture

## The order of the folders

From top to bottom.

```text
debug/       above
machine/     in the middle
engine/
position.rs  below all
```

## The order of the packages

```text
vmm: cpu
cpu: ; in tests: vmm
```
"""

# A tree that keeps every rule.
TREE = {
    "ARCHITECTURE.md": ARCHITECTURE,
    "Cargo.toml": '[workspace]\nmembers = ["vmm", "cpu", "tests/skip"]\n',
    "tests/skip/Cargo.toml": '[package]\nname = "skip"\n',
    "vmm/Cargo.toml": '[package]\nname = "vmm"\n[dependencies]\ncpu.workspace = true\n',
    "vmm/src/lib.rs": "pub mod debug;\npub mod engine;\npub mod machine;\npub mod position;\npub use machine::Machine;\n",
    "vmm/src/debug/mod.rs": "use crate::machine::{self, Machine as M};\nfn f(_: M) -> machine::Kind { todo!() }\n",
    # A façade: what it passes on is defined beside it.
    "vmm/src/machine/mod.rs": "mod board;\nmod run;\npub use board::Board;\npub use run::{Kind, Machine};\n",
    "vmm/src/machine/board.rs": "pub struct Board;\n",
    "vmm/src/machine/run.rs": "use super::Board;\nuse crate::engine::Engine;\n"
    "pub struct Machine { board: Board, engine: Engine }\npub enum Kind { Soft }\n",
    # The older way to lay out a module with children.
    "vmm/src/engine.rs": "mod soft;\npub use soft::Engine;\n",
    "vmm/src/engine/soft.rs": "use crate::position::Position;\npub struct Engine(Position);\n",
    "vmm/src/position.rs": "pub struct Position(u64);\n",
    "cpu/Cargo.toml": '[package]\nname = "cpu"\n[dev-dependencies]\nvmm.workspace = true\n',
    "cpu/src/lib.rs": "mod core;\nmod state;\n",
    "cpu/src/core.rs": "use crate::state::State;\npub struct Core(State);\n",
    "cpu/src/state.rs": "pub struct State;\n",
}

# What is put into the tree (behind what a file has already, if the text begins with +), and a part of each line that
# the checker must then say; none if the tree still keeps every rule.
CASES = {
    "the tree as it is": ({}, []),
    "an arrow upward": (
        {"vmm/src/engine/soft.rs": "+use crate::debug::Debugger;\n", "vmm/src/debug/mod.rs": "pub struct Debugger;\n"},
        ["soft.rs: imports Debugger from vmm/src/debug/mod.rs, but debug/ stands above engine/"],
    ),
    "an arrow upward in a path, through a façade": (
        {"vmm/src/position.rs": "+fn f() { let _ = crate :: machine::Kind::Soft; }\n"},
        [
            "vmm/src/position.rs: imports Kind from vmm/src/machine/run.rs, but machine/ stands above position.rs",
            "vmm/src: 3 folders form a circle",
        ],
    ),
    "an arrow upward out of a tree of imports": (
        {"vmm/src/engine/soft.rs": "+use crate::{\n    machine::{\n        Board as _,\n    },\n};\n"},
        ["imports Board from vmm/src/machine/board.rs", "2 folders form a circle (engine/ -> machine/ -> engine/)"],
    ),
    "by way of the crate's own root": (
        {"vmm/src/engine/soft.rs": "+use crate::Machine;\nfn f(_: Machine) {}\n"},
        ["imports Machine from vmm/src/machine/run.rs", "2 folders form a circle"],
    ),
    "everything of a folder above": (
        {"vmm/src/engine/soft.rs": "+use crate::machine::*;\nfn f(_: Board) {}\n"},
        ["imports Board from vmm/src/machine/board.rs", "2 folders form a circle"],
    ),
    "imports of tests": (
        {
            "vmm/src/engine.rs": "+#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse crate::debug::f;\n",
            "vmm/src/engine/tests.rs": "use crate::debug::f;\n",
            "vmm/src/position.rs": "+#[cfg(test)]\nmod tests {\n    use crate::machine::Machine;\n    fn f(_: Machine) {}\n}\n"
            "#[cfg(all(test, unix))]\nfn g() { crate::machine::Board; }\n",
        },
        [],
    ),
    "what is not only for tests": (
        {"vmm/src/position.rs": "+#[cfg(not(test))]\nuse crate::machine::Board;\n"},
        ["imports Board", "folders form a circle"],
    ),
    "comments, strings and names that only look alike": (
        {
            "vmm/src/position.rs": "+//! [`crate::machine::Machine`]\n/* use crate::machine::Board; /* nested */ */\n"
            "const A: &str = \"use crate::machine::Board; \\\" crate::machine::Board\";\n"
            "const B: &str = r#\"crate::machine::Board \"quoted\" \"#;\n"
            "fn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' }\nuse other::machine::Machine;\n"
        },
        [],
    ),
    "two files that know each other": (
        {"vmm/src/machine/board.rs": "+use super::run::Kind;\n"},
        [],
    ),
    "three files in a circle": (
        {
            "vmm/src/machine/mod.rs": "+mod disk;\n",
            "vmm/src/machine/board.rs": "+use super::disk::Disk;\n",
            "vmm/src/machine/disk.rs": "use super::Kind;\npub struct Disk(Kind);\n",
        },
        ["vmm/src/machine/: 3 files form a circle"],
    ),
    "a façade that works itself": (
        {
            "vmm/src/machine/mod.rs": "+pub fn power_on(board: Board, kind: Kind) {}\n",
            "vmm/src/machine/board.rs": "+fn f() { super::power_on(Board, Kind::Soft) }\n",
            "vmm/src/machine/run.rs": "+fn f() { super::power_on(Board, Kind::Soft) }\n",
        },
        ["vmm/src/machine/: 3 files form a circle"],
    ),
    "a circle of two in another package": (
        {"cpu/src/state.rs": "+impl State { fn of(_: &super::core::Core) {} }\n"},
        ["cpu: 2 files form a circle (cpu/src/core.rs -> cpu/src/state.rs -> cpu/src/core.rs)"],
    ),
    "a circle that is excepted": (
        {
            "cpu/src/lib.rs": "+mod decode;\nmod ops;\n",
            "cpu/src/decode/mod.rs": "pub struct Insn;\nfn f(insn: Insn) { crate::ops::lower::lower(insn) }\n",
            "cpu/src/ops/mod.rs": "pub mod lower;\nuse crate::decode::Insn;\npub fn add(_: Insn) {}\n",
            "cpu/src/ops/lower.rs": "use crate::decode::Insn;\npub fn lower(insn: Insn) { super::add(insn) }\n",
        },
        [],
    ),
    "too many loose files, which the order does not know": (
        {
            "vmm/src/lib.rs": "+" + "".join(f"mod m{number};\n" for number in range(4)),
            **{f"vmm/src/m{number}.rs": "\n" for number in range(4)},
        },
        [*(f"vmm/src/m{number}.rs: ARCHITECTURE.md" for number in range(4)), "vmm/src: 7 files lie loose there"],
    ),
    "a folder that is gone": (
        {"vmm/src/lib.rs": "pub mod engine;\npub mod machine;\npub mod position;\n"},
        ["vmm/src/debug/: ARCHITECTURE.md, 'The order of the folders', names it"],
    ),
    "packages that do not know one another": (
        {"cpu/Cargo.toml": '[package]\nname = "cpu"\n[target."cfg(unix)".dependencies]\nvmm.workspace = true\n'},
        ["cpu/Cargo.toml: cpu depends on vmm, which it must not know"],
    ),
    "a package that the table does not name": (
        {"ARCHITECTURE.md": ARCHITECTURE.replace("cpu: ;", "gpu: ;")},
        ["cpu: ARCHITECTURE.md, 'The order of the packages', does not say", "gpu: ARCHITECTURE.md"],
    ),
}


# What the case "a circle that is excepted" needs.
EXCEPTED = [("cpu", "cpu/src/decode/*", "cpu/src/ops/lower.rs", "handlers are found by this one narrow file")]


def make_tree(root, changes):
    for name, text in {**TREE, **changes}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TREE.get(name, "") + text[1:] if text.startswith("+") else text)


def problems(lines, expected):
    """What is not as it should be: each expected text in a line of its own, and no line more."""
    rest = list(lines)
    for text in expected:
        found = next((line for line in rest if text in line), None)
        if found is None:
            yield f"nothing says: {text}"
        else:
            rest.remove(found)
    yield from (f"unexpected: {line}" for line in rest)


def run():
    failed = 0
    rules.EXCEPTED = EXCEPTED
    for name, (changes, expected) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            make_tree(root, changes)
            for problem in problems(rules.wrong(root, read_workspace(root)), expected):
                print(f"{name}: {problem}")
                failed += 1
    failed += not counts_are_right()
    print(f"layers: {len(CASES) + 1} trees tried, {failed} problems")
    return 1 if failed else 0


def counts_are_right():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        make_tree(root, {"vmm/src/position.rs": "+use crate::machine::Board;\n"})
        figures = dict(rules.figures(root, read_workspace(root), ["Engine", "Eng"]))
    expected = {
        "folders of vmm/src": 3,
        "loose files of vmm/src": 3,
        "arrows upward": 1,
        "circles of folders": 1,
        "longest circle of folders": 3,
        "circles of files inside folders of vmm/src": 0,
        "files of vmm with the word Engine": 3,
        "files of vmm with the word Eng": 0,
    }
    wrong = {what: figures.get(what) for what, number in expected.items() if figures.get(what) != number}
    for what, number in wrong.items():
        print(f"figures: {what}: {number} instead of {expected[what]}")
    return not wrong
