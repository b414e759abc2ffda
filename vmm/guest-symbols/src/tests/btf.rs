//! Tests that every kind of record is read as it was written.

use super::Types;
use crate::btf::{Btf, Field, Member, Shape, Type};

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const FLOAT: u32 = 16;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;
const FLAG: u32 = 1 << 31;

/// The type of this number, with its name.
fn full<'a>(btf: &Btf<'a>, number: u32) -> (Option<&'a str>, Shape<'a>) {
    let Type { name, shape } = btf.full(number).unwrap();
    (name, shape)
}

fn integer(size: u32, bits: u8, is_signed: bool, is_bool: bool) -> Shape<'static> {
    Shape::Integer { size, bits, is_signed, is_bool }
}

#[test]
fn every_kind_is_read_as_it_was_written() {
    let mut types = Types::new();
    let mut expected: Vec<(Option<&str>, Shape<'_>)> = Vec::new();
    let mut record = |name: &'static str, info: u32, size: u32, rest: &[u32], shape: Shape<'static>| {
        types.record(name, info, size, rest);
        expected.push(((!name.is_empty()).then_some(name), shape));
    };
    record("unsigned int", INT << 24, 4, &[32], integer(4, 32, false, false));
    record("signed char", INT << 24, 1, &[1 << 24 | 8], integer(1, 8, true, false));
    record("_Bool", INT << 24, 1, &[4 << 24 | 8], integer(1, 8, false, true));
    // A character type of 16 bits is read as a plain integer.
    record("wide", INT << 24, 2, &[2 << 24 | 16], integer(2, 16, false, false));
    record("double", FLOAT << 24, 8, &[], Shape::Float(8));
    record("", POINTER << 24, 7, &[], Shape::Pointer(7));
    record("u32", TYPEDEF << 24, 1, &[], Shape::Typedef(1));
    record("", CONST << 24, 2, &[], Shape::Const(2));
    record("", VOLATILE << 24, 3, &[], Shape::Volatile(3));
    record("", RESTRICT << 24, 6, &[], Shape::Restrict(6));
    record("rcu", TYPE_TAG << 24, 4, &[], Shape::Tagged(4));
    record("", ARRAY << 24, 0, &[2, 1, 16], Shape::Array { element: 2, count: 16 });
    record("tree", FORWARD << 24, 0, &[], Shape::Forward { is_union: false });
    record("leaf", FLAG | FORWARD << 24, 0, &[], Shape::Forward { is_union: true });
    record("add", FUNCTION << 24 | 1, 20, &[], Shape::Function(20));
    record("count", VARIABLE << 24, 1, &[1], Shape::Variable(1));
    record(".data", SECTION << 24 | 1, 4, &[16, 0, 4], Shape::Other);
    record("mark", DECLARATION_TAG << 24, 1, &[3], Shape::Other);
    let prototype = Shape::Prototype { result: 1, parameters: vec![(None, 2), (None, 0)] };
    record("", PROTOTYPE << 24 | 2, 1, &[0, 2, 0, 0], prototype);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.numbers(), 1..=expected.len() as u32);
    for (number, expected) in (1..).zip(expected) {
        assert_eq!(full(&btf, number), expected, "type {number}");
    }
    assert_eq!((btf.full(0), btf.full(20), btf.full(u32::MAX)), (None, None, None));
    assert_eq!(btf.base_count(), 0);
    assert_eq!((btf.array(12), btf.array(6)), (Some((2, 16)), None));
    assert_eq!((btf.size(1), btf.size(12)), (None, None), "neither is a structure");
}

#[test]
fn parts_of_structures_enumerations_and_functions_have_names_and_values() {
    let mut types = Types::new();
    types.record("int", INT << 24, 4, &[1 << 24 | 32]);
    let [a, b, c] = ["a", "b", "c"].map(|name| types.string(name));
    types.record("plain", STRUCT << 24 | 2, 8, &[a, 1, 0, b, 1, 0x0100_0020]);
    let width = 5 << 24;
    types.record("flags", FLAG | UNION << 24 | 2, 4, &[a, 1, width | 3, c, 1, 8]);
    types.record("low", FLAG | ENUM << 24 | 2, 4, &[a, -1_i32 as u32, b, 7]);
    types.record("high", ENUM << 24 | 1, 4, &[c, u32::MAX]);
    types.record("huge", FLAG | ENUM64 << 24 | 2, 8, &[a, 1, 2, b, u32::MAX, u32::MAX]);
    types.record("", PROTOTYPE << 24 | 1, 0, &[b, 1]);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    let member = |name, bit_offset, bit_size| Member { name: Some(name), kind: 1, bit_offset, bit_size };
    // In a structure without bit fields, all bits of a member's word are its offset.
    let members = vec![member("a", 0, None), member("b", 0x0100_0020, None)];
    let plain = Shape::Structure { is_union: false, size: 8, members };
    assert_eq!(full(&btf, 2), (Some("plain"), plain));
    let members = vec![member("a", 3, Some(5)), member("c", 8, None)];
    assert_eq!(full(&btf, 3).1, Shape::Structure { is_union: true, size: 4, members });
    let enumeration = |size, is_signed, values| Shape::Enumeration { size, is_signed, values };
    assert_eq!(full(&btf, 4).1, enumeration(4, true, vec![(Some("a"), -1), (Some("b"), 7)]));
    assert_eq!(full(&btf, 5).1, enumeration(4, false, vec![(Some("c"), 0xffff_ffff)]));
    let values = vec![(Some("a"), 0x2_0000_0001), (Some("b"), -1)];
    assert_eq!(full(&btf, 6).1, enumeration(8, true, values));
    let prototype = Shape::Prototype { result: 0, parameters: vec![(Some("b"), 1)] };
    assert_eq!(full(&btf, 7), (None, prototype));
    assert_eq!((btf.structure("plain"), btf.structure("flags")), (Some(2), None), "a union is none");
    assert_eq!(btf.field(2, "b"), Some(Field { offset: 0x0100_0020 / 8, kind: 1 }));
    assert_eq!((btf.field(3, "c"), btf.size(3)), (Some(Field { offset: 1, kind: 1 }), Some(4)));
}

#[test]
fn types_lead_to_those_that_they_are_made_of() {
    let mut types = Types::new();
    types.record("int", INT << 24, 4, &[32]);
    for kind in [POINTER, TYPEDEF, CONST, VOLATILE, RESTRICT, TYPE_TAG] {
        types.record("", kind << 24, 1, &[]);
    }
    types.record("", ARRAY << 24, 0, &[3, 1, 2]);
    types.record("", PROTOTYPE << 24 | 2, 2, &[0, 4, 0, 5]);
    types.structure("pair", 8, &[("one", 6, 0), ("two", 7, 4)]);
    types.record("f", FUNCTION << 24, 9, &[]);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    for number in 2..=7 {
        assert_eq!((btf.leads_to(number), btf.references(number)), (Some(1), vec![1]), "{number}");
    }
    assert_eq!((btf.leads_to(8), btf.references(8)), (Some(3), vec![3]));
    assert_eq!((btf.leads_to(9), btf.references(9)), (Some(2), vec![2, 4, 5]));
    assert_eq!((btf.leads_to(10), btf.references(10)), (None, vec![6, 7]));
    for number in [0, 1, 11, 12] {
        assert_eq!((btf.leads_to(number), btf.references(number)), (None, vec![]), "{number}");
    }
}

#[test]
fn numbers_with_fewer_bits_than_bytes_are_narrow() {
    let mut types = Types::new();
    for (size, encoding) in [(4, 31), (4, 32), (1, 4 << 24 | 1), (2, 1 << 24 | 15)] {
        types.record("n", INT << 24, size, &[encoding]);
    }
    types.record("p", POINTER << 24, 1, &[]);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    let narrow: Vec<_> = (1..=6).map(|number| btf.narrow_bits(number)).collect();
    assert_eq!(narrow, [Some(31), None, None, Some(15), None, None]);
}

#[test]
fn names_are_texts_that_can_be_written() {
    let mut types = Types::new();
    let (most, over) = ("n".repeat(511), "n".repeat(512));
    for name in ["int", "long int", "two  blanks", " first", "last ", "caf\u{e9}", "tab\t", &most, &over] {
        types.record(name, INT << 24, 4, &[32]);
    }
    types.record("", INT << 24, 4, &[32]);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    let names: Vec<_> = btf.numbers().map(|number| full(&btf, number).0).collect();
    let expected = [
        Some("int"),
        Some("long int"),
        None,
        None,
        None,
        Some("caf\u{e9}"),
        None,
        Some(most.as_str()),
        None,
        None,
    ];
    assert_eq!(names, expected);
}

/// A search for a field also looks into anonymous members, down to a depth.
#[test]
fn fields_lie_in_parts_without_a_name_down_to_a_depth() {
    let mut types = Types::new();
    let inner = types.structure("", 4, &[("deep", 0, 2)]);
    let mut outer = inner;
    for _ in 0..8 {
        outer = types.structure("", 8, &[("", outer, 1)]);
    }
    let too_far = types.structure("far", 8, &[("", outer, 1)]);
    // The fields of a member with a name are not fields of the outer structure.
    let named = types.structure("named", 8, &[("part", inner, 4), ("own", 0, 6)]);
    let bytes = types.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.field(outer, "deep"), Some(Field { offset: 8 + 2, kind: 0 }));
    assert_eq!(btf.field(too_far, "deep"), None);
    assert_eq!((btf.field(named, "deep"), btf.field(named, "own").unwrap().offset), (None, 6));
    assert_eq!(btf.field(named, "ow"), None, "a part of a name is none");
}

#[test]
fn headers_of_other_versions_and_parts_that_lie_outside_are_refused() {
    let mut types = Types::new();
    types.record("int", INT << 24, 4, &[32]);
    let good = types.bytes();
    assert!(Btf::parse(&good).is_some());
    for (at, value) in [(0, 0), (1, 0), (2, 2), (2, 0)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert!(Btf::parse(&bytes).is_none(), "byte {at} is {value}");
    }
    // The header says where the parts begin. Other bytes may lie before and between the parts.
    let mut bytes = good[..24].to_vec();
    bytes.extend([0xff; 8]);
    bytes.extend(&good[24..40]);
    bytes.extend([0xff; 4]);
    bytes.extend(&good[40..]);
    for (word, value) in [(1, 32_u32), (2, 0), (3, 16), (4, 20), (5, 5)] {
        bytes[4 * word..4 * word + 4].copy_from_slice(&value.to_le_bytes());
    }
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(full(&btf, 1), (Some("int"), integer(4, 32, false, false)));
    // Words 1 to 5 of the header are sizes and offsets. No size or offset may lead outside the bytes, and sums may not
    // wrap.
    for word in 1..6 {
        let mut bytes = good.clone();
        bytes[4 * word..4 * word + 4].fill(0xff);
        assert!(Btf::parse(&bytes).is_none(), "word {word}");
    }
}

#[test]
fn numbers_and_names_of_a_module_go_on_behind_the_kernel_s() {
    let mut kernel = Types::new();
    kernel.record("int", INT << 24, 4, &[32]);
    kernel.structure("desk", 8, &[("leg", 1, 4)]);
    let mut module = Types::of_module(&kernel);
    module.structure("lamp", 16, &[("bulb", 2, 8), ("", 2, 4)]);
    let (kernel, module) = (kernel.bytes(), module.bytes());
    let kernel = Btf::parse(&kernel).unwrap();
    let module = Btf::parse_module(&module, &kernel).unwrap();
    assert_eq!((module.base_count(), module.numbers()), (2, 3..=3));
    let names = [1, 2, 3].map(|number| module.full(number).unwrap().name);
    assert_eq!(names, [Some("int"), Some("desk"), Some("lamp")]);
    assert_eq!((module.structure("lamp"), module.structure("desk")), (Some(3), None));
    assert_eq!(module.field(3, "bulb"), Some(Field { offset: 8, kind: 2 }));
    assert_eq!(module.field(3, "leg"), Some(Field { offset: 8, kind: 1 }), "in a part of the kernel's");
    assert_eq!((module.full(0), module.full(4)), (None, None));
}
