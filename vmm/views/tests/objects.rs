//! Tests the objects of a guest that looks like Linux: their caches, their lives, and the functions that allocated and
//! freed them. The guest's own instructions give the expected positions.

use history::never;
use history::timeline::{Breakpoint, Stops, Timeline};
use machine::position::{Count, Instructions};
use tiny_guest::linux::objects::{
    DENTRY_BYTES, FILE, FILE_BYTES, FIRST, LARGE_OBJECT, OTHERS, PAGE, RED_ZONE, SECOND, record,
};
use tiny_guest::linux::{Places, TEXT};
use views::difference::Side;
use views::filters::Filters;
use views::object::{Event, Life, Object, Place, Question, When};
use views::{calls, tree};

struct Guest {
    _directory: tempfile::TempDir,
    timeline: Timeline,
    places: Places,
}

impl Guest {
    fn new() -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let (recording, _, places) = record(directory.path(), "r.ttvm");
        Guest { timeline: Timeline::open(&recording).unwrap(), places, _directory: directory }
    }

    /// The positions at which the named instruction is next.
    fn all(&mut self, place: &str) -> Vec<u64> {
        let breakpoints = vec![Breakpoint::at(self.places[place])];
        self.timeline.set_stops(Stops { breakpoints, ..Stops::default() });
        let end = self.timeline.end();
        let hits = self.timeline.hits(Instructions(0), end, usize::MAX, &mut never).unwrap();
        self.timeline.set_stops(Stops::default());
        hits.found.iter().map(|hit| hit.before.number()).collect()
    }

    /// Goes to the first position at which the named instruction is next.
    fn go_to(&mut self, place: &str) -> u64 {
        let at = self.all(place)[0];
        self.timeline.seek(Instructions(at), &mut never).unwrap();
        at
    }

    fn try_object(&mut self, address: &str) -> Result<Object, String> {
        let question = Question { address, processor: None, earlier: 1, count: false };
        question.answer(&mut self.timeline, &mut never).map_err(|error| error.to_string())
    }

    /// The object at an address when the named instruction is next.
    fn object(&mut self, place: &str, address: u64, (earlier, count): (usize, bool)) -> Object {
        self.go_to(place);
        let address = format!("{address:#x}");
        let question = Question { address: &address, processor: Some(0), earlier, count };
        question.answer(&mut self.timeline, &mut never).unwrap()
    }

    fn moments(&mut self) -> Moments {
        let object = self.all("kmem_cache_alloc_noprof.returns");
        let (freed, counted) = (self.all("kfree"), self.all("__alloc_pages_noprof.counts"));
        Moments {
            opened: (object[0], "kmem_cache_alloc_noprof", &["opens", "start_kernel", "_stext"]),
            closed: (
                self.all("kmem_cache_free")[0],
                "kmem_cache_free",
                &["closes", "start_kernel", "_stext"],
            ),
            copied: (
                self.all("__kmalloc_noprof.returns")[0],
                "__kmalloc_noprof",
                &["copies", "start_kernel", "_stext"],
            ),
            dropped: (freed[0], "kfree", &["drops", "start_kernel", "_stext"]),
            filled: (
                self.all("fills.filled")[0],
                "kmem_cache_alloc_bulk_noprof",
                &["fills", "start_kernel", "_stext"],
            ),
            drained: (
                self.all("kmem_cache_free_bulk")[0],
                "kmem_cache_free_bulk",
                &["drains", "start_kernel", "_stext"],
            ),
            slow: (
                self.all("alloc_slowly.returns")[0],
                "alloc_slowly",
                &["opens_slowly", "start_kernel", "_stext"],
            ),
            // Only five callers are shown.
            deep: (freed[2], "kfree", &["drops", "depth_4", "depth_3", "depth_2", "depth_1"]),
            file: (object[3], "kmem_cache_alloc_noprof", &["opens_file", "start_kernel", "_stext"]),
            large: (
                self.all("__kmalloc_large_noprof.returns")[0],
                "__kmalloc_large_noprof",
                &["opens_large", "start_kernel", "_stext"],
            ),
            large_freed: (freed[3], "kfree", &["drops_large", "start_kernel", "_stext"]),
            taken: (counted[2], "__alloc_pages_noprof", &["takes", "start_kernel", "_stext"]),
            released: (self.all("folio_put.counts")[1], "folio_put", &["releases", "start_kernel", "_stext"]),
            taken_again: (counted[3], "__alloc_pages_noprof", &["takes", "start_kernel", "_stext"]),
        }
    }
}

/// An allocation or a free: its position, its function, and the function's callers.
type Told = (u64, &'static str, &'static [&'static str]);

/// The guest's allocations and frees.
struct Moments {
    opened: Told,
    closed: Told,
    copied: Told,
    dropped: Told,
    filled: Told,
    drained: Told,
    slow: Told,
    deep: Told,
    file: Told,
    large: Told,
    large_freed: Told,
    taken: Told,
    released: Told,
    taken_again: Told,
}

fn check(event: Option<&Event>, expected: Option<Told>) {
    let Some((instruction, function, callers)) = expected else { return assert_eq!(event, None) };
    let event = event.unwrap();
    let named: Vec<&str> = event.callers.iter().map(|call| call.split('+').next().unwrap()).collect();
    assert_eq!((event.at.instruction, &*event.function), (instruction, function), "{event:?}");
    assert_eq!((named, event.at.pid, event.at.name.as_deref()), (callers.to_vec(), Some(5), Some("alpha")));
}

/// Checks the lives of an object: when each is, its allocation, and its free.
fn check_lives(object: &Object, cache: &str, expected: &[(When, Option<Told>, Option<Told>)]) {
    assert_eq!(object.lives.len(), expected.len(), "{object}");
    for (life, (when, allocated, freed)) in object.lives.iter().zip(expected) {
        assert_eq!(life.when, *when, "{object}");
        assert_eq!(life.name, allocated.map(|(at, ..)| format!("{cache}@insn:{at}")), "{object}");
        check(life.allocated.as_ref(), *allocated);
        check(life.freed.as_ref(), *freed);
    }
}

fn of_dentry(offset: u64) -> Place {
    let base = format!("{FIRST:#x}");
    Place::Object { cache: "dentry".to_string(), base, offset, bytes: DENTRY_BYTES }
}

use When::{Earlier, Later, Now};
const ONE: (usize, bool) = (1, false);

#[test]
fn an_object_has_its_life_and_the_lives_around_it() {
    let mut guest = Guest::new();
    let it = guest.moments();
    let object = guest.object("start_kernel.copied", FIRST + 8, ONE);
    assert_eq!((&object.place, object.allocated), (&of_dentry(8), Some(true)), "{object}");
    let lives = [
        (Earlier, Some(it.opened), Some(it.closed)),
        (Now, Some(it.copied), Some(it.dropped)),
        (Later, Some(it.filled), None),
    ];
    check_lives(&object, "dentry", &lives);
    assert!(object.pages_allocated.is_none() && object.pages_reused.is_none(), "{object}");
    let at = guest.all("start_kernel.copied")[0];
    assert_eq!((object.at.instruction, object.interrupted), (at, false));
    let text = object.to_string();
    let address = FIRST + 8;
    let first = format!(
        "{address:#x} is byte 0x8 of an object of dentry at {FIRST:#x}, 64 bytes, allocated at insn:{at}\n\
         earlier: dentry@insn:{}\n  allocated  insn:{}  ",
        it.opened.0, it.opened.0
    );
    assert!(text.starts_with(&first), "{text}");
    let now = format!("\nnow: dentry@insn:{}\n", it.copied.0);
    let later = format!("\nlater: dentry@insn:{}\n", it.filled.0);
    assert!(text.contains(&now) && text.contains(&later) && !text.contains("not freed until"), "{text}");

    let object = guest.object("start_kernel.dropped", FIRST, ONE);
    assert_eq!((&object.place, object.allocated), (&of_dentry(0), Some(false)), "{object}");
    let lives = [(Earlier, Some(it.copied), Some(it.dropped)), (Later, Some(it.filled), None)];
    check_lives(&object, "dentry", &lives);
    assert!(object.to_string().contains(", free at insn:"), "{object}");
}

#[test]
fn all_lives_are_found_and_counted() {
    let mut guest = Guest::new();
    let it = guest.moments();
    let whole = [
        (Earlier, Some(it.opened), Some(it.closed)),
        (Earlier, Some(it.copied), Some(it.dropped)),
        (Earlier, Some(it.filled), Some(it.drained)),
        (Now, Some(it.slow), Some(it.deep)),
    ];
    let pages = guest.all("__alloc_pages_noprof.returns");
    let object = guest.object("start_kernel.opened_slowly", FIRST, (10, true));
    check_lives(&object, "dentry", &whole);
    check(
        object.pages_allocated.as_ref(),
        Some((pages[0], "__alloc_pages_noprof", &["grows", "start_kernel", "_stext"])),
    );
    check(
        object.pages_reused.as_ref(),
        Some((pages[1], "__alloc_pages_noprof", &["recycles", "start_kernel", "_stext"])),
    );
    let numbers = |object: &Object| object.lives.iter().map(|life| life.number).collect::<Vec<_>>();
    assert_eq!(numbers(&object), [Some(1), Some(2), Some(3), Some(4)], "{object}");
    assert!(object.to_string().contains(&format!("dentry@insn:{}, number 4 at this address", it.slow.0)));
    // Fewer lives, and their numbers.
    for earlier in 0..4 {
        let object = guest.object("start_kernel.opened_slowly", FIRST, (earlier, true));
        let shown = earlier.max(1);
        check_lives(&object, "dentry", &whole[3 - shown..]);
        assert_eq!(numbers(&object), (4 - shown..=4).map(Some).collect::<Vec<_>>(), "{object}");
        assert!(object.pages_allocated.is_none(), "{object}");
    }
    let object = guest.object("start_kernel.opened", SECOND, (1, true));
    let other = guest.all("kmem_cache_alloc_noprof.returns")[2];
    let expected = (other, "kmem_cache_alloc_noprof", &["opens_second", "start_kernel", "_stext"][..]);
    assert_eq!((object.allocated, object.lives.len()), (Some(false), 1), "{object}");
    check(object.lives[0].allocated.as_ref(), Some(expected));
}

/// At the moment of an allocation, the object is allocated. At the moment of a free, the object is not free yet.
#[test]
fn an_event_at_the_position_itself_counts() {
    let mut guest = Guest::new();
    let it = guest.moments();
    let object = guest.object("kmem_cache_alloc_noprof.returns", FIRST, ONE);
    assert_eq!(object.allocated, Some(true), "{object}");
    check_lives(
        &object,
        "dentry",
        &[(Now, Some(it.opened), Some(it.closed)), (Later, Some(it.copied), None)],
    );
    let object = guest.object("kmem_cache_free", FIRST, ONE);
    assert_eq!(object.allocated, Some(true), "{object}");
    check_lives(
        &object,
        "dentry",
        &[(Now, Some(it.opened), Some(it.closed)), (Later, Some(it.copied), None)],
    );
}

#[test]
fn objects_between_red_zones_and_large_objects_are_found() {
    let mut guest = Guest::new();
    let it = guest.moments();
    let object = guest.object("start_kernel.opened_file", FILE + 0x10, ONE);
    let file = |offset| Place::Object {
        cache: "filp".to_string(),
        base: format!("{FILE:#x}"),
        offset,
        bytes: FILE_BYTES,
    };
    assert_eq!((&object.place, object.allocated), (&file(0x10), Some(true)), "{object}");
    check_lives(&object, "filp", &[(Now, Some(it.file), None)]);
    assert!(object.to_string().ends_with("\nnot freed until the end of the recording"), "{object}");
    // The red zone before the object belongs to the object's place.
    let object = guest.object("start_kernel.opened_file", FILE - RED_ZONE, ONE);
    assert_eq!((&object.place, object.lives.len()), (&file(0), 1), "{object}");

    let object = guest.object("start_kernel.opened_large", LARGE_OBJECT + 0x1008, ONE);
    let base = format!("{LARGE_OBJECT:#x}");
    let place = Place::Object { cache: "kmalloc-large".to_string(), base, offset: 0x1008, bytes: 0x2000 };
    assert_eq!((&object.place, object.allocated), (&place, Some(true)), "{object}");
    check_lives(&object, "kmalloc-large", &[(Now, Some(it.large), Some(it.large_freed))]);
}

#[test]
fn pages_live_from_their_first_reference_to_their_last() {
    let mut guest = Guest::new();
    let it = guest.moments();
    let pages = |references| Place::Pages {
        owner: "other memory of the kernel".to_string(),
        base: format!("{PAGE:#x}"),
        offset: 0x123,
        order: 0,
        references,
    };
    let lives = [(Now, Some(it.taken), Some(it.released)), (Later, Some(it.taken_again), None)];
    for (place, references) in [("taken", 1), ("shared", 1), ("folio_get", 1), ("folio_put", 2)] {
        let name =
            if place.starts_with("folio") { place.to_string() } else { format!("start_kernel.{place}") };
        let object = guest.object(&name, PAGE + 0x123, ONE);
        assert_eq!((&object.place, object.allocated), (&pages(references), Some(true)), "{place}: {object}");
        check_lives(&object, "page", &lives);
    }
    let object = guest.object("start_kernel.released", PAGE + 0x123, ONE);
    assert_eq!((&object.place, object.allocated), (&pages(0), Some(false)), "{object}");
    check_lives(
        &object,
        "page",
        &[(Earlier, Some(it.taken), Some(it.released)), (Later, Some(it.taken_again), None)],
    );
    let text = "byte 0x123 of a page at ";
    assert!(object.to_string().contains(text) && object.to_string().contains("count of references 0, free"));
    let count = guest.object("start_kernel.opened_large", PAGE, (1, true));
    let numbers: Vec<_> = count.lives.iter().map(|life| life.number).collect();
    assert_eq!(numbers, [Some(1), Some(2)], "{count}");
}

#[test]
fn pages_of_other_uses_are_named() {
    let mut guest = Guest::new();
    let uses =
        ["the kernel's image and reserved memory", "programs' own memory", "free memory", "page tables"];
    for (address, owner) in OTHERS.into_iter().zip(uses) {
        let object = guest.object("start_kernel.opened", address + 1, ONE);
        let text = object.to_string();
        let at = object.at.instruction;
        let expected = format!(
            "{:#x} is byte 0x1 of a page at {address:#x}: {owner}, count of references 0 at insn:{at}\n\
             never allocated or freed in this recording",
            address + 1
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn addresses_are_numbers_registers_symbols_and_pointers() {
    let mut guest = Guest::new();
    guest.go_to("kmem_cache_alloc_noprof.returns");
    let here = guest.timeline.position();
    for (text, offset) in [
        ("rax+4", 4),
        ("$rax", 0),
        ("rdx-0", 0),
        (" * first_object ", 0),
        ("phys:0x300060", 0x20),
        ("first_object", 0),
    ] {
        guest.timeline.seek(here, &mut never).unwrap();
        let object = guest.try_object(text).unwrap();
        match &object.place {
            Place::Object { .. } => assert_eq!(object.place, of_dentry(offset), "{text}"),
            // The pointer itself is a variable of the kernel.
            Place::Pages { owner, .. } => {
                assert_eq!((text, &**owner), ("first_object", "other memory of the kernel"));
            }
        }
    }
    let last = FILE - RED_ZONE + 0x1000 / FILE_BYTES * FILE_BYTES;
    for (text, expected) in [
        ("nosuch", "'nosuch' is no address: write ADDRESS, REGISTER or SYMBOL"),
        ("rax+x", "'rax+x' is no address"),
        ("phys:rax", "'phys:rax' is no address"),
        ("*0x7fff0000", "there is no memory at 0x7fff0000 at this position"),
        ("0x7fff0000", "0x7fff0000 is not mapped at this position"),
        (&format!("{last:#x}"), "is in no memory that the kernel allocates"),
    ] {
        guest.timeline.seek(here, &mut never).unwrap();
        let error = guest.try_object(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let question = Question { address: "rax", processor: Some(3), earlier: 1, count: false };
    let error = question.answer(&mut guest.timeline, &mut never).unwrap_err().to_string();
    assert!(error.contains("processor"), "{error}");
}

#[test]
fn an_interrupted_search_for_lives_says_so() {
    let mut guest = Guest::new();
    guest.go_to("start_kernel.copied");
    let address = format!("{FIRST:#x}");
    let question = Question { address: &address, processor: None, earlier: 1, count: true };
    let here = guest.timeline.position();
    let whole = question.answer(&mut guest.timeline, &mut never).unwrap();
    for polls in 0.. {
        guest.timeline.seek(here, &mut never).unwrap();
        let mut poll = tiny_guest::interrupt_after(polls);
        match question.answer(&mut guest.timeline, &mut poll) {
            Ok(object) if object.interrupted => {
                assert!(object.to_string().ends_with("\ninterrupted: there may be more lives"), "{object}");
            }
            Ok(object) => {
                let names = |lives: &[Life]| lives.iter().map(|life| life.name.clone()).collect::<Vec<_>>();
                assert_eq!(names(&object.lives), names(&whole.lives), "{object}");
                break;
            }
            Err(error) => assert!(error.to_string().contains("interrupted"), "{error}"),
        }
    }
}

#[test]
fn changed_pages_are_grouped_by_their_use() {
    let mut guest = Guest::new();
    guest.go_to("start_kernel.opened");
    let before = Side::of(guest.timeline.machine_mut()).unwrap();
    guest.go_to("start_kernel.written");
    let difference = before.to(guest.timeline.machine_mut(), 10).unwrap();
    let groups: Vec<_> =
        difference.memory.iter().map(|group| (&*group.what, group.pages, group.objects)).collect();
    // The stack, and the page that is no object.
    let expected = [("other memory of the kernel", 2, None), ("objects of dentry", 1, Some(2))];
    assert_eq!(groups, expected, "{difference}");
    let text = difference.to_string();
    assert!(text.contains("\n       1  objects of dentry, 2 objects\n"), "{text}");
    assert_eq!(difference.pages_changed, 3);
}

/// The calls of a function, as text without position and time.
fn called(guest: &mut Guest, function: &str) -> String {
    let filters = Filters::default();
    let question = calls::Question { function, filters: &filters, limit: 10 };
    let part = Instructions(0)..guest.timeline.end();
    let found = question.answer(&mut guest.timeline, part, &mut never).unwrap();
    assert_eq!(found.calls.len(), 1);
    let text = found.calls[0].to_string();
    let begin = text.find(&format!("{function}(")).unwrap();
    text[begin..].split("  in ").next().unwrap().to_string()
}

#[test]
fn arguments_and_results_follow_the_prototype() {
    let mut guest = Guest::new();
    let arguments = "number = -5, pair = {first = 7, second = 8}, large = {one = 11, two = 12, three = 13}, \
                     a = 9, b = 10, other = {first = 21, second = 22}, c = 31, d = 32";
    assert_eq!(called(&mut guest, "takes_all"), format!("takes_all({arguments}) = -EINVAL"));
    let text = format!("prints(format = {TEXT:#x} \"hello\", ...) = 6");
    assert_eq!(called(&mut guest, "prints"), text);
    let question = tree::Question { thread: None, depth: 9, with_programs: false };
    for (from, to, expected) in [
        ("opens", "closes", "kmem_cache_alloc_noprof(cache = "),
        ("drops", "opens_second", "kfree(object = "),
        ("calls_with_all", "prints_number", &format!("takes_all({arguments}) = -EINVAL")),
        ("prints_number", "unused", &text),
    ] {
        let part = Instructions(guest.all(from)[0])..Instructions(guest.all(to)[0]);
        let found = question.answer(&mut guest.timeline, part, &mut never).unwrap();
        let node = &found.calls[0];
        let shown = found.to_string();
        assert!(shown.contains(&format!("  {expected}")), "{shown}");
        // A function without a result shows none.
        assert_eq!(node.result.is_none(), node.function == "kfree", "{shown}");
    }
    // Without a prototype, all registers for arguments are shown.
    let registers =
        format!("rdi = 0x40, rsi = {FIRST:#x}, rdx = {FIRST:#x}, rcx = {PAGE:#x}, r8 = 0x0, r9 = 0x0");
    assert_eq!(called(&mut guest, "__kmalloc_noprof"), format!("__kmalloc_noprof({registers}) = {FIRST:#x}"));
}
