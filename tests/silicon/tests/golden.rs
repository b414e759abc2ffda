//! Compares the CPU with an Intel processor's golden vectors, on any host. Also tests that the vectors and the
//! comparison notice errors.

use std::collections::BTreeMap;
use std::io;

use silicon::case::{Case, Generator};
use silicon::golden::{self, Golden};
use silicon::open::{self, Compared};
use silicon::reference::{Disturbed, Reference};
use silicon::state::{Outcome, Registers};
use silicon::{Which, replay, replay_part};

/// The part with instructions that leave flags or results undefined.
const UNDEFINED: Which = Which { part: Some(0), batch: None, case: None };
/// One batch of each part.
const SAMPLES: [Which; 2] =
    [Which { batch: Some(0), ..UNDEFINED }, Which { part: Some(1), batch: Some(0), case: None }];

fn vectors() -> Golden {
    Golden::load(&golden::path()).expect("the golden vectors are in the tree")
}

#[test]
fn the_cpu_does_what_an_intel_processor_did() {
    let golden = vectors();
    println!("{} cases of {}", golden.len(), golden.processor);
    let report = replay(&golden, Which::default(), 1).expect("the cases are those that were recorded");
    print!("{report}");
    assert_eq!(report.differences(), 0, "differences from the processor that was recorded");
    assert!(report.not_offered.is_empty(), "instructions that the CPU model has were undefined");
    assert!(report.not_offered.is_empty(), "instructions that the CPU model has were undefined");
    assert!(report.executions() >= 100_000);
}

/// A reference that changes another reference's results.
struct Changed<R, F>(R, F);

impl<R: Reference, F: FnMut(&Case, &mut Outcome)> Reference for Changed<R, F> {
    fn fs_base(&self) -> u64 {
        self.0.fs_base()
    }
    fn seal_read_only(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.seal_read_only(bytes)
    }
    fn start_batch(&mut self, batch: u64) -> io::Result<()> {
        self.0.start_batch(batch)
    }
    fn run(&mut self, case: &Case, outcome: &mut Outcome, data: &mut [u8]) -> io::Result<()> {
        self.0.run(case, outcome, data)?;
        (self.1)(case, outcome);
        Ok(())
    }
    fn skip(&mut self, case: &Case) -> io::Result<()> {
        self.0.skip(case)
    }
}

/// If the CPU changes any undefined flag, the comparison with the vectors fails.
#[test]
fn every_undefined_flag_counts() {
    let golden = vectors();
    let flags = [1, 4, 0x10, 0x40, 0x80, 0x800];
    for flag in flags {
        let mut changed = 0;
        let results = Changed(golden.results(0), |case: &Case, outcome: &mut Outcome| {
            let open = open::flags(case) & flag;
            outcome.registers.rflags ^= open;
            changed += u64::from(open != 0);
        });
        let report =
            replay_part(&golden, SAMPLES[0], results, Compared::Everything, 0).expect("they are current");
        assert_eq!(report.differences(), changed, "flag {flag:#x}");
        assert!(changed > 200, "flag {flag:#x}: {changed} cases are few");
    }
}

#[test]
fn every_instruction_with_undefined_flags_has_vectors() {
    let golden = vectors();
    let mut cases = BTreeMap::<String, u64>::new();
    let results = Changed(golden.results(0), |case: &Case, outcome: &mut Outcome| {
        if outcome.fault.is_none() && open::flags(case) != 0 {
            *cases.entry(format!("{:?}", case.instruction.mnemonic()).to_lowercase()).or_default() += 1;
        }
    });
    replay_part(&golden, UNDEFINED, results, Compared::Everything, 0).expect("they are current");
    println!("{cases:?}");
    // BSWAP leaves no flag undefined.
    let expected = golden.parts[0].only.iter().filter(|name| *name != "bswap");
    let few = expected.filter(|name| cases.get(*name).is_none_or(|&count| count < 100)).collect::<Vec<_>>();
    assert!(few.is_empty(), "{few:?} have few cases");
}

#[test]
fn another_vendors_processor_differs_only_where_it_may() {
    let golden = vectors();
    for which in SAMPLES {
        let results = || Disturbed(golden.results(which.part.expect("it is one part's")));
        let defined = replay_part(&golden, which, results(), Compared::Defined, 1).expect("they are current");
        assert_eq!(defined.differences(), 0, "{which:?}");
        let all = replay_part(&golden, which, results(), Compared::Everything, 0).expect("they are current");
        assert!(all.differences() > 200, "{which:?}: what is open is compared");
    }
}

#[test]
fn on_other_vendors_processors_what_is_defined_is_compared() {
    const ARITHMETIC: u64 = 0x8d5;
    let golden = vectors();
    for which in SAMPLES {
        let part = which.part.expect("it is one part's");
        let changes: [fn(&Case, &mut Outcome); 4] = [
            |_, outcome| outcome.registers.gpr[15] ^= 1,
            |_, outcome| outcome.registers.fx.set_xmm(15, !outcome.registers.fx.xmm(15)),
            |_, outcome| outcome.registers.rip += 1,
            |case, outcome| outcome.registers.rflags ^= ARITHMETIC & !open::flags(case) | 0x400,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let results = Changed(golden.results(part), change);
            let report =
                replay_part(&golden, which, results, Compared::Defined, 0).expect("they are current");
            let (seen, all) = (report.differences(), report.executions());
            assert!(seen > all * 95 / 100, "change {number}, {which:?}: {seen} of {all}");
        }
    }
}

#[test]
fn vectors_of_other_cases_are_refused() {
    let mut golden = vectors();
    golden.parts[0].only.pop();
    let error = golden.catalogue(0).err().expect("one instruction less makes other cases");
    assert!(error.to_string().contains("record these again"), "{error}");
}

/// Compares the undefined flags of [`open`] with the manuals: flags from the decoder's tables, and flags that `open`
/// adds.
#[test]
fn undefined_flags_are_the_manuals() {
    const ALL: u64 = 0x8d5;
    const SHIFT: u64 = 0x10 | 0x800;
    for (bytes, cl, expected) in [
        (&[0x01, 0xc8][..], 0, 0),
        (&[0x21, 0xc8], 0, 0x10),
        (&[0xf7, 0xe1], 0, 0xd4),
        (&[0xf7, 0xf1], 0, ALL),
        (&[0xd3, 0xe0], 0, 0),
        (&[0xd3, 0xe0], 1, 0x10),
        (&[0xd3, 0xe0], 2, SHIFT),
        (&[0xd3, 0xe0], 0x20, 0),
        (&[0xd2, 0xe0], 8, SHIFT | 1),
        (&[0xd2, 0xf8], 8, SHIFT),
        (&[0xc1, 0xe0, 5], 0, SHIFT),
        (&[0x0f, 0xa5, 0xc8], 3, SHIFT),
        (&[0xd3, 0xc0], 3, 0x800),
        (&[0x0f, 0xa3, 0xc8], 0, 0x894),
        (&[0x0f, 0xbc, 0xc1], 0, 0x895),
        (&[0xf3, 0x0f, 0xbc, 0xc1], 0, 0x894),
    ] {
        assert_eq!(open::flags(&case(bytes, cl)), expected, "{bytes:02x?} CL {cl:#x}");
    }
}

#[test]
fn an_operand_size_prefix_of_a_near_branch_is_not_tried_elsewhere() {
    for (bytes, expected) in [
        (&[0x66, 0xe9, 0, 0, 0, 0][..], true),
        (&[0x66, 0x74, 0], true),
        (&[0x66, 0xff, 0xe0], true),
        (&[0x66, 0xc3], true),
        (&[0xe9, 0, 0, 0, 0], false),
        (&[0x66, 0x01, 0xc8], false),
    ] {
        assert_eq!(open::decoded_otherwise(&case(bytes, 0)), expected, "{bytes:02x?}");
    }
}

fn case(bytes: &[u8], cl: u64) -> Case {
    let mut case = Case { registers: Registers::ZERO, ..Case::default() };
    case.bytes[..bytes.len()].copy_from_slice(bytes);
    case.registers.gpr[1] = cl;
    case.instruction = iced_x86::Decoder::new(64, &case.bytes, iced_x86::DecoderOptions::NONE).decode();
    case
}

/// Tests that only the seed, the batch and the number determine a case.
#[test]
fn cases_are_repeated() {
    let catalogue = vectors().catalogue(0).expect("they are current");
    let mut generator = Generator::new(&catalogue, 7, 0);
    let (mut once, mut again) = (Case::default(), Case::default());
    generator.case(0, 5, &mut once);
    generator.case(0, 6, &mut again);
    generator.case(0, 5, &mut again);
    assert!(once.registers == again.registers && once.code() == again.code());
}
