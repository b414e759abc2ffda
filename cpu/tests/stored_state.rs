//! The stored bytes of a CPU's state. Recordings hold hashes of these bytes, and checkpoints the bytes themselves,
//! so the stored bytes must never change. A state with other fields needs a new type, such as `CpuStateV2` after
//! `CpuStateV1`.

use cpu::{Counts, CpuState, CpuStateV1, FpuState, Msrs, Segment, TableRegister};

/// Values that are all different, and use all bytes of their types.
struct Values(u128);

impl Values {
    fn next(&mut self) -> u128 {
        self.0 += 1;
        0xf0f1_f2f3_f4f5_f6f7_f8f9_fafb_fcfd_fe00_u128
            .wrapping_add(self.0 * 0x0101_0101_0101_0101_0101_0101_0101_0101)
    }
    fn u8(&mut self) -> u8 {
        self.next() as u8 | 0x80
    }
    fn u16(&mut self) -> u16 {
        self.next() as u16
    }
    fn u32(&mut self) -> u32 {
        self.next() as u32
    }
    fn u64(&mut self) -> u64 {
        self.next() as u64
    }
    fn u64s<const N: usize>(&mut self) -> [u64; N] {
        [(); N].map(|()| self.u64())
    }
    fn segment(&mut self) -> Segment {
        Segment { selector: self.u16(), base: self.u64(), limit: self.u32(), attributes: self.u16() }
    }
    fn table(&mut self) -> TableRegister {
        TableRegister { base: self.u64(), limit: self.u16() }
    }
}

fn fpu(v: &mut Values) -> FpuState {
    FpuState {
        mantissas: v.u64s(),
        sign_exponents: [(); 8].map(|()| v.u16()),
        control: v.u16(),
        status: v.u16(),
        valid: v.u8(),
        opcode: v.u16(),
        instruction_pointer: v.u64(),
        data_pointer: v.u64(),
        instruction_selector: v.u16(),
        data_selector: v.u16(),
    }
}

fn msrs(v: &mut Values) -> Msrs {
    Msrs {
        efer: v.u64(),
        star: v.u64(),
        lstar: v.u64(),
        cstar: v.u64(),
        sfmask: v.u64(),
        kernel_gs_base: v.u64(),
        sysenter_cs: v.u64(),
        sysenter_esp: v.u64(),
        sysenter_eip: v.u64(),
        tsc_aux: v.u64(),
        tsc_offset: v.u64(),
        tsc_adjust: v.u64(),
        pat: v.u64(),
        mtrr_def_type: v.u64(),
        mtrr_fixed: v.u64s(),
        mtrr_variable: v.u64s(),
        misc_enable: v.u64(),
        mcg_status: v.u64(),
        debugctl: v.u64(),
    }
}

/// A state in which no two fields have equal values, except for the flags: only flag number `flag` is set.
fn state(flag: usize) -> (CpuState, Counts) {
    let v = &mut Values(0);
    let state = CpuState {
        gpr: v.u64s(),
        rip: v.u64(),
        rflags: v.u64(),
        segments: [(); 6].map(|()| v.segment()),
        ldtr: v.segment(),
        tr: v.segment(),
        gdtr: v.table(),
        idtr: v.table(),
        cr0: v.u64(),
        cr2: v.u64(),
        cr3: v.u64(),
        cr4: v.u64(),
        xcr0: v.u64(),
        pdptes: v.u64s(),
        dr: v.u64s(),
        dr6: v.u64(),
        dr7: v.u64(),
        xmm: [(); 16].map(|()| v.next()),
        ymm_high: [(); 16].map(|()| v.next()),
        mxcsr: v.u32(),
        fpu: fpu(v),
        msrs: msrs(v),
        halted: flag == 0,
        shut_down: flag == 1,
        interrupt_shadow: flag == 2,
        mov_ss_shadow: flag == 3,
        nmi_blocked: flag == 4,
        pending_debug: v.u64(),
    };
    (state, Counts { steps: v.u64(), branches: v.u64(), system_calls: v.u64() })
}

/// The bytes of a state in recordings and checkpoints.
fn bytes((state, counts): &(CpuState, Counts)) -> Vec<u8> {
    postcard::to_stdvec(&CpuStateV1::new(state, *counts)).expect("a state can be written")
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_string()
}

/// Hashes of states with different flags set, and of the state after reset.
#[test]
fn the_bytes_are_what_recordings_were_made_with() {
    let found = [0, 1, 2, 3, 4].map(|flag| hash(&bytes(&state(flag))));
    assert_eq!(bytes(&state(0)).len(), 1678);
    assert_eq!(
        found,
        ["77dd39d286cfe744", "8138507fc632e007", "e6f7ff3356dcb545", "3f1243d8ae5fbbe2", "a66b0c7f7721d48e"]
    );
    assert_eq!(hash(&bytes(&(CpuState::reset(), Counts::default()))), "fead600e754ce513");
}

/// Names and nesting of the fields, in their stored order. A failed hash cannot show which field moved.
#[test]
fn the_fields_are_in_their_order() {
    let (state, counts) = state(0);
    let json = serde_json::to_string(&CpuStateV1::new(&state, counts)).expect("a state can be written");
    let names = json.split('"').skip(1).step_by(2).collect::<Vec<_>>();
    let segment = "selector base limit attributes";
    let expected = [
        "gpr rip rflags segments",
        &[segment; 6].join(" "),
        "ldtr",
        segment,
        "tr",
        segment,
        "gdtr base limit idtr base limit cr0 cr2 cr3 cr4 xcr0 pdptes dr dr6 dr7 xmm ymm_high mxcsr",
        "fpu mantissas sign_exponents control status valid opcode",
        "instruction_pointer data_pointer instruction_selector data_selector",
        "msrs efer star lstar cstar sfmask kernel_gs_base sysenter_cs sysenter_esp sysenter_eip",
        "tsc_aux tsc_offset tsc_adjust pat mtrr_def_type mtrr_fixed mtrr_variable misc_enable mcg_status debugctl",
        "halted shut_down interrupt_shadow mov_ss_shadow nmi_blocked pending_debug steps branches system_calls",
    ];
    assert_eq!(names.join(" "), expected.join(" "));
}

#[test]
fn a_state_comes_back_from_its_bytes() {
    for flag in 0..5 {
        let back: CpuStateV1 =
            postcard::from_bytes(&bytes(&state(flag))).expect("it was written by this version");
        assert_eq!(<(CpuState, Counts)>::from(back), state(flag));
    }
}

/// The hashes need different values: swapping two equal fields would not change them.
#[test]
fn every_value_differs() {
    let (state, counts) = state(0);
    let json = serde_json::to_string(&CpuStateV1::new(&state, counts)).expect("a state can be written");
    let mut numbers = json.split(|c: char| !c.is_ascii_digit()).filter(|n| n.len() > 2).collect::<Vec<_>>();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}
