"""Files with symbols: the kernel, module or program that a file belongs to, its address in the guest, and the files
that gdb has loaded."""

import os
import re
import stat
import struct
import tempfile

import gdb

from ttvm_ask import ask, quoted


# The lowest address of a kernel's image. Sections at lower addresses have per-CPU variables, whose addresses are
# offsets.
IMAGE = 0xFFFFFFFF80000000
# Symbols of both a kernel's file and the guest's kernel. The difference of their addresses is the distance that KASLR
# moved the kernel.
LANDMARKS = (b"_stext", b"_text", b"startup_64")
# Kinds of ELF files: a module's, a program's at a fixed address, and one that goes to any address.
MODULE_FILE, PROGRAM_FILE, MOVED_FILE = 1, 2, 3
# The largest table that is read from a file.
MAX_TABLE_BYTES = 256 << 20
# An ELF file without sections and segments.
NOTHING = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
# The first address for sections that the guest has freed. The address is not canonical, so no memory is there.
FREED = 0xDEAD << 48


class SymbolTable:
    """The functions and landmarks of an ELF file: name to address, or None if the name occurs more than once. `fixed`
    has the sections that KASLR does not move. Nothing else is read, because a kernel with debug information is
    large."""

    def __init__(self, path):
        self.path, self.functions, self.fixed = path, {}, []
        # The kind of the ELF file, the names of its sections in memory, and the section of each function.
        self.kind, self.sections, self.section_of = 0, [], {}
        try:
            with plain_file(path) as file:
                self.read(file)
        except (IndexError, struct.error):
            raise gdb.GdbError("cannot use the symbols of %s: it is cut off" % path) from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise gdb.GdbError("cannot use the symbols of %s: %s" % (path, why)) from None

    def read(self, file):
        header = elf_header(file)
        (self.kind,) = struct.unpack_from("<H", header, 16)
        (start,) = struct.unpack_from("<Q", header, 40)
        count, names = struct.unpack_from("<HH", header, 60)
        # Name, type, flags, address, offset, size, link, and three fields that are not used.
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", table(file, start, 64 * count)))
        names = table(file, sections[names][4], sections[names][5])
        named = [text_at(names, section[0]).decode(errors="replace") for section in sections]
        for name, (_, _, flags, address, *_) in zip(named, sections):
            if flags & 2 and re.fullmatch(r"[A-Za-z0-9._-]+", name):
                self.sections.append(name)
                if address < IMAGE:
                    self.fixed.append((name, address))
        symbols = next((section for section in sections if section[1] == 2), None)
        if symbols is None and self.kind == PROGRAM_FILE and len(self.fixed) < len(self.sections):
            raise ValueError("it has no symbols (stripped?)")
        if symbols is None:
            return
        texts = table(file, sections[symbols[6]][4], sections[symbols[6]][5])
        for name, info, _, section, address, _ in struct.iter_unpack("<IBBHQQ", table(file, symbols[4], symbols[5] // 24 * 24)):
            name = text_at(texts, name)
            if section and name and (info & 15 == 2 or name in LANDMARKS):
                self.functions[name] = None if name in self.functions else address
                if section < len(named):
                    self.section_of[name] = named[section]

    def compare(self, kernel):
        """Returns the distance in bytes by which the guest's kernel was moved from this file's addresses (None without
        a common landmark), the number of common functions, and the number of common functions at this distance."""
        both = [(at, kernel.functions.get(name), name) for name, at in self.functions.items()]
        both = {name: (there - at) % 2**64 for at, there, name in both if at is not None and there is not None}
        distance = next((both[landmark] for landmark in LANDMARKS if landmark in both), None)
        return distance, len(both), sum(moved == distance for moved in both.values())

    def place(self, known, guest):
        """The addresses of a module's sections: `known`, which the guest lists, or, if `known` is empty, addresses
        computed from the guest's functions. Sections that the guest has freed get impossible addresses. Otherwise gdb
        would put them at 0 and show null pointers as symbols of these sections. Raises an error if the functions are
        not at the expected addresses."""
        places, votes = dict(known), {}
        for name, at in self.functions.items():
            there = guest.functions.get(name)
            if at is not None and there is not None:
                votes.setdefault(self.section_of.get(name), []).append((there - at) % 2**64)
        if not known:
            places = {section: max(votes[section], key=votes[section].count) for section in votes}
        places = {section: places[section] for section in self.sections if section in places}
        votes = [(section, place) for section in places for place in votes.get(section, ())]
        right = sum(places[section] == place for section, place in votes)
        if not places or right * 100 < len(votes) * 99:
            raise gdb.GdbError(
                "%s is not the guest's module: %d of %d common functions are at the expected addresses; "
                "use the file of the same build"
                % (self.path, right, len(votes))
            )
        return {section: places.get(section, FREED + (number << 32)) for number, section in enumerate(self.sections)}


def plain_file(path):
    """Opens a regular file. Another kind of file could keep gdb waiting."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a regular file")
    return open(path, "rb")


def elf_header(file):
    """The header of an ELF file."""
    header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01" or header[18:20] != b"\x3e\x00":
        raise ValueError("it is not an ELF file for x86-64")
    return header


def table(file, start, size):
    """The `size` bytes of a file from `start` on."""
    if size > MAX_TABLE_BYTES:
        raise ValueError("a table in it is too large")
    file.seek(start)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data


def text_at(texts, start):
    """The string that begins at `start` in a string table."""
    end = texts.find(0, start)
    return texts[start : end if end >= 0 else None]


def moved_by(file, parts):
    """The distance in bytes by which a program or library was moved from the addresses in its file. `parts` has an
    entry for each part in memory: the address, the rights, the offset in the file and the path."""
    try:
        with plain_file(file) as opened:
            header = elf_header(opened)
            (start,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            if size != 56:
                raise ValueError("it is no program or library")
            # Kind, flags, offset, address, physical address, size in the file, size in memory, alignment.
            segments = list(struct.iter_unpack("<IIQQQQQQ", table(opened, start, 56 * count)))
    except (OSError, ValueError, struct.error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise gdb.GdbError("cannot use %s: %s" % (file, why)) from None
    # Look at code first: all parts are moved by the same distance.
    for at, rights, offset, _ in sorted(parts, key=lambda part: "x" not in part[1]):
        for kind, flags, begin, address, _, length, *_ in segments:
            if kind == 1 and begin & ~0xFFF <= offset < begin + length and ("x" in rights) == bool(flags & 1):
                return (at - (address - begin + offset)) % 2**64
    raise gdb.GdbError("%s is not the guest's file: their segments differ; use the file from the guest's disk" % file)


class Guest:
    """The symbols in the guest's memory at this position, and files of the user compared with them."""

    # The tables of the user's files by path, with the time and size of the file. A changed file is read again.
    tables = {}

    def __init__(self, own):
        self.own, self.table, self.compared = own, None, {}

    @property
    def symbols(self):
        self.table = self.table or SymbolTable(gdb.string_to_argv(self.own[0])[1])
        return self.table

    def table_of(self, file):
        """The symbol table of a file."""
        try:
            state = os.stat(file)
            known = (state.st_mtime_ns, state.st_size)
        except OSError:
            known = None
        if self.tables.get(file, (None,))[0] != known or known is None:
            self.tables[file] = known, SymbolTable(file)
        return self.tables[file][1]

    def compare(self, file):
        """A file's symbol table, and the result of SymbolTable.compare with the guest's kernel."""
        if file not in self.compared:
            theirs = self.table_of(file)
            none = (None, 0, 0)
            self.compared[file] = theirs, *(none if theirs.kind == MODULE_FILE else theirs.compare(self.symbols))
        return self.compared[file]

    def is_kernel(self, file):
        """Whether a file is of the guest's kernel. Raises an error if it is of another kernel."""
        _, distance, common, agreeing = self.compare(file)
        # A large program may have 64 names in common with a kernel, but it has no landmark.
        if common < 64 or distance is None:
            return False
        if agreeing * 100 < common * 99:
            raise gdb.GdbError(
                "%s is not of the guest's kernel: %d of %d common functions are at the expected addresses; "
                "use the file of the same build"
                % (file, agreeing, common)
            )
        return True

    def unmoved_kernel(self):
        """The file of the guest's kernel that gdb has loaded at the file's addresses, although the guest's kernel was
        moved. Empty if there is none."""
        file = gdb.current_progspace().filename
        try:
            return file if file and self.is_kernel(file) and self.distance(file) else ""
        except gdb.GdbError:
            return ""

    def distance(self, kernel):
        """The distance in bytes by which the guest's kernel was moved from the addresses in its file. 0 if the file is
        not a kernel."""
        return self.compare(kernel)[1] if self.is_kernel(kernel) else 0

    def command_of(self, kernel):
        """The gdb command that loads a kernel's file."""
        theirs, distance, *_ = self.compare(kernel)
        return add_command(kernel, distance, theirs.fixed if distance else ())

    def sections(self, module):
        """The sections of a module, with their addresses."""
        lines = (line.split() for line in ask("symbols module " + module).splitlines())
        return {words[1]: int(words[2], 0) for words in lines if len(words) == 3 and words[0] == "section"}


def add_command(file, distance=0, sections=()):
    """The gdb command that adds a file's symbols."""
    command = "add-symbol-file " + quoted(file)
    if distance:
        command += " -o %#x" % distance
    return command + "".join(" -s %s %#x" % section for section in sections)


def module_name(file):
    """The kernel's name for the module in a file."""
    return re.sub(r"\.ko(\..*)?$", "", os.path.basename(file)).replace("-", "_")


class Files:
    """The files with symbols that the tt commands have loaded in gdb."""

    # The path of the user's file of the kernel. For each other file of the user, by path, the gdb command that loads
    # the file. None means that the command must be determined at each load.
    kernel, added = "", {}
    # The gdb commands whose files are loaded. `last` is the command whose file must be the last in gdb's list.
    loaded, last = [], None
    busy = False

    @classmethod
    def load(cls, commands, last):
        """Runs the commands whose files are not loaded yet, and removes the files of other commands. A loaded kernel is
        not loaded again, because loading its debug information takes long."""
        before = [line for line in cls.loaded if is_loaded(gdb.string_to_argv(line)[1])]
        cls.loaded, cls.last, cls.busy = [], last, True
        try:
            for command in commands:
                if command not in before:
                    gdb.execute(command, to_string=True)
                cls.loaded.append(command)
            # Remove files only after adding others: gdb disables a breakpoint as soon as no file has its place.
            for command in before:
                if command not in commands:
                    remove(gdb.string_to_argv(command)[1])
        finally:
            cls.busy = False

    @classmethod
    def add(cls, file, command):
        """Adds a file with this gdb command, or loads it again if its address has changed."""
        cls.added[file] = command
        others = [line for line in cls.loaded if gdb.string_to_argv(line)[1] != file and line != cls.last]
        cls.load(others + [command] + ([cls.last] if cls.last else []), cls.last)
        cls.keep_last()

    @classmethod
    def keep_last(cls, event=None):
        """Loads the file of `last` again after another file, so that it is again the last in gdb's list."""
        if cls.busy or cls.last is None or not is_loaded(gdb.string_to_argv(cls.last)[1]):
            return
        cls.busy = True
        try:
            remove(gdb.string_to_argv(cls.last)[1])
            gdb.execute(cls.last, to_string=True)
        except gdb.error:
            pass  # Without this file, backtraces go on beyond their end.
        finally:
            cls.busy = False

    @classmethod
    def are_others(cls, kernel):
        """The names under which gdb has loaded a kernel's file without a tt command."""
        ours = {os.path.realpath(gdb.string_to_argv(line)[1]) for line in cls.loaded}
        names = {file.filename for file in gdb.objfiles() if file.filename} - ours
        return [name for name in names if os.path.exists(name) and os.path.samefile(name, kernel)]

    @classmethod
    def drop(cls, names):
        """Removes files from gdb that no tt command has loaded."""
        main, cls.busy = gdb.current_progspace().filename, True
        try:
            for name in names:
                if name != main:
                    remove(name)
                    continue
                # symbol-file without an argument would remove all files, so give it an empty file.
                load_nothing("symbol-file", "ttvm-nothing-")
        finally:
            cls.busy = False


def load_nothing(command, prefix):
    """Runs a gdb command on an ELF file without contents. Returns the file, which is deleted when it is closed."""
    nothing = tempfile.NamedTemporaryFile(prefix=prefix)
    nothing.write(NOTHING)
    nothing.flush()
    gdb.execute("%s %s" % (command, quoted(nothing.name)), to_string=True)
    return nothing


def name_program():
    """Gives gdb an empty program if it has none, because gdb warns if it connects without a program."""
    space = gdb.current_progspace()
    if gdb.selected_inferior().pid or space.filename or getattr(space, "executable_filename", None):
        return
    try:
        program = load_nothing("exec-file", "ttvm-guest-")
    except OSError:
        return  # The file cannot be written. gdb then warns.
    # gdb may open the file again, so keep it until gdb exits.
    gdb.events.gdb_exiting.connect(lambda event: program.close())


def is_loaded(file):
    return any(objfile.filename == os.path.realpath(file) for objfile in gdb.objfiles())


def remove(file):
    """Removes a file's symbols from gdb. If the file is loaded more than once, removes the symbols that were loaded
    first."""
    try:
        gdb.execute("remove-symbol-file " + quoted(os.path.realpath(file)), to_string=True)
    except gdb.error:
        pass  # The user has removed it already.
