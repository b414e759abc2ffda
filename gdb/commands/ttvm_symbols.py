"""Files with symbols: which kernel, module or program a file is of, where the guest has it, and what gdb has loaded."""

import os
import re
import stat
import struct
import tempfile

import gdb

from ttvm_ask import ask, quoted


# Where a kernel's image begins; what an ELF file has below that are variables that each CPU has, whose addresses are offsets.
IMAGE = 0xFFFFFFFF80000000
# What both a kernel's file and the guest's kernel name, by which the distance between them is measured.
LANDMARKS = (b"_stext", b"_text", b"startup_64")
# Kinds of ELF files: a module's, a program's at a fixed address, and one that goes to any address.
MODULE_FILE, PROGRAM_FILE, MOVED_FILE = 1, 2, 3
# The largest table of a file that is read.
MAX_TABLE_BYTES = 256 << 20
# An ELF file with nothing in it.
NOTHING = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
# Not a canonical address, so nothing is there.
FREED = 0xDEAD << 48


class SymbolTable:
    """The functions and landmarks that an ELF file names once, by name, and which of its sections a kernel that was moved
    (KASLR) leaves where they are. Of a kernel with debug information, which is large, nothing else is read."""

    def __init__(self, path):
        self.path, self.functions, self.fixed = path, {}, []
        # The kind of the file, and its sections in memory. Of a module also the section of each function.
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
        # Name, type, flags, address, offset, size, link, and what does not matter here.
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
        """How far the guest's kernel was moved, how many functions both have, and how many are where they should be."""
        both = [(at, kernel.functions.get(name), name) for name, at in self.functions.items()]
        both = {name: (there - at) % 2**64 for at, there, name in both if at is not None and there is not None}
        distance = next((both[landmark] for landmark in LANDMARKS if landmark in both), None)
        return distance, len(both), sum(moved == distance for moved in both.values())

    def place(self, known, guest):
        """The addresses of a module's sections: as the guest lists them, or, if it lists none, as it names their functions. Sections
        that the guest has freed get impossible addresses, because gdb would put them at 0 and name null pointers after them.
        Raises an error if the functions are elsewhere."""
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
    """A part of a file."""
    if size > MAX_TABLE_BYTES:
        raise ValueError("a table in it is too large")
    file.seek(start)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data


def text_at(texts, start):
    """A text in a table of them, up to its zero byte."""
    end = texts.find(0, start)
    return texts[start : end if end >= 0 else None]


def moved_by(file, parts):
    """How far a program or library was moved from the addresses that are in its file. Of each part that is in memory: where it
    is, its rights, and its place in the file."""
    try:
        with plain_file(file) as opened:
            header = elf_header(opened)
            (start,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            if size != 56:
                raise ValueError("it is no program or library")
            # Kind, flags, offset, address, and what does not matter here but the size in the file.
            segments = list(struct.iter_unpack("<IIQQQQQQ", table(opened, start, 56 * count)))
    except (OSError, ValueError, struct.error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise gdb.GdbError("cannot use %s: %s" % (file, why)) from None
    # What is code is where the others are.
    for at, rights, offset, _ in sorted(parts, key=lambda part: "x" not in part[1]):
        for kind, flags, begin, address, _, length, *_ in segments:
            if kind == 1 and begin & ~0xFFF <= offset < begin + length and ("x" in rights) == bool(flags & 1):
                return (at - (address - begin + offset)) % 2**64
    raise gdb.GdbError("%s is not the guest's file: their segments differ; use the file from the guest's disk" % file)


class Guest:
    """The guest's own symbols, as of now."""

    # Tables of files of the user's, which are large: by path, and what tells that the file is another one now.
    tables = {}

    def __init__(self, own):
        self.own, self.table, self.compared = own, None, {}

    @property
    def symbols(self):
        self.table = self.table or SymbolTable(gdb.string_to_argv(self.own[0])[1])
        return self.table

    def table_of(self, file):
        """A file's table."""
        try:
            state = os.stat(file)
            known = (state.st_mtime_ns, state.st_size)
        except OSError:
            known = None
        if self.tables.get(file, (None,))[0] != known or known is None:
            self.tables[file] = known, SymbolTable(file)
        return self.tables[file][1]

    def compare(self, file):
        """A file's table, how far the guest's kernel was moved from it, and how many functions both have, and at that distance."""
        if file not in self.compared:
            theirs = self.table_of(file)
            none = (None, 0, 0)
            self.compared[file] = theirs, *(none if theirs.kind == MODULE_FILE else theirs.compare(self.symbols))
        return self.compared[file]

    def is_kernel(self, file):
        """Whether a file is of the guest's kernel. Raises an error if it is of another kernel."""
        _, distance, common, agreeing = self.compare(file)
        # A large program has as many names in common with a kernel, but none of the landmarks.
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
        """A file of the guest's kernel that gdb has loaded by itself, and that belongs elsewhere."""
        file = gdb.current_progspace().filename
        try:
            return file if file and self.is_kernel(file) and self.distance(file) else ""
        except gdb.GdbError:
            return ""

    def distance(self, kernel):
        """How far the guest's kernel was moved from where its file has it."""
        return self.compare(kernel)[1] if self.is_kernel(kernel) else 0

    def command_of(self, kernel):
        """The command that loads a kernel's file."""
        theirs, distance, *_ = self.compare(kernel)
        return add_command(kernel, distance, theirs.fixed if distance else ())

    def sections(self, module):
        """The sections of a module, with their addresses."""
        lines = (line.split() for line in ask("symbols module " + module).splitlines())
        return {words[1]: int(words[2], 0) for words in lines if len(words) == 3 and words[0] == "section"}


def add_command(file, distance=0, sections=()):
    """The command that adds a file's symbols."""
    command = "add-symbol-file " + quoted(file)
    if distance:
        command += " -o %#x" % distance
    return command + "".join(" -s %s %#x" % section for section in sections)


def module_name(file):
    """What the kernel calls the module in a file."""
    return re.sub(r"\.ko(\..*)?$", "", os.path.basename(file)).replace("-", "_")


class Files:
    """The files with symbols that gdb has loaded for us."""

    # The kernel's file that the user has given, and others: by path, the command that loads each, or None if it is to be found anew.
    kernel, added = "", {}
    # The commands that have loaded what is loaded, and the one whose file has to stay behind all others.
    loaded, last = [], None
    busy = False

    @classmethod
    def load(cls, commands, last):
        """Loads what is new. A kernel with debug information takes a while, and once is enough: it does not move."""
        before = [line for line in cls.loaded if is_loaded(gdb.string_to_argv(line)[1])]
        cls.loaded, cls.last, cls.busy = [], last, True
        try:
            for command in commands:
                if command not in before:
                    gdb.execute(command, to_string=True)
                cls.loaded.append(command)
            # Not before: gdb disables breakpoints whose places it does not know any more.
            for command in before:
                if command not in commands:
                    remove(gdb.string_to_argv(command)[1])
        finally:
            cls.busy = False

    @classmethod
    def add(cls, file, command):
        """Adds a file, or puts it elsewhere."""
        cls.added[file] = command
        others = [line for line in cls.loaded if gdb.string_to_argv(line)[1] != file and line != cls.last]
        cls.load(others + [command] + ([cls.last] if cls.last else []), cls.last)
        cls.keep_last()

    @classmethod
    def keep_last(cls, event=None):
        """Has the file that has to stay behind all others do so, when another one has been loaded."""
        if cls.busy or cls.last is None or not is_loaded(gdb.string_to_argv(cls.last)[1]):
            return
        cls.busy = True
        try:
            remove(gdb.string_to_argv(cls.last)[1])
            gdb.execute(cls.last, to_string=True)
        except gdb.error:
            pass  # Backtraces go further than they should.
        finally:
            cls.busy = False

    @classmethod
    def are_others(cls, kernel):
        """The names under which gdb has loaded a kernel's file by itself."""
        ours = {os.path.realpath(gdb.string_to_argv(line)[1]) for line in cls.loaded}
        names = {file.filename for file in gdb.objfiles() if file.filename} - ours
        return [name for name in names if os.path.exists(name) and os.path.samefile(name, kernel)]

    @classmethod
    def drop(cls, names):
        """Drops files that gdb has loaded by itself."""
        main, cls.busy = gdb.current_progspace().filename, True
        try:
            for name in names:
                if name != main:
                    remove(name)
                    continue
                # Without a file the command would drop all files.
                load_nothing("symbol-file", "ttvm-nothing-")
        finally:
            cls.busy = False


def load_nothing(command, prefix):
    """Gives a command a file without contents. Returns the file, which goes away with its last user."""
    nothing = tempfile.NamedTemporaryFile(prefix=prefix)
    nothing.write(NOTHING)
    nothing.flush()
    gdb.execute("%s %s" % (command, quoted(nothing.name)), to_string=True)
    return nothing


def name_program():
    """Names gdb a program, if it has none: gdb warns if it connects without one."""
    space = gdb.current_progspace()
    if gdb.selected_inferior().pid or space.filename or getattr(space, "executable_filename", None):
        return
    try:
        program = load_nothing("exec-file", "ttvm-guest-")
    except OSError:
        return  # The file cannot be written, and gdb warns.
    # gdb may open the file again until it ends.
    gdb.events.gdb_exiting.connect(lambda event: program.close())


def is_loaded(file):
    return any(objfile.filename == os.path.realpath(file) for objfile in gdb.objfiles())


def remove(file):
    """Drops a file's symbols; of several copies, those that were loaded first."""
    try:
        gdb.execute("remove-symbol-file " + quoted(os.path.realpath(file)), to_string=True)
    except gdb.error:
        pass  # The user has removed it already.
