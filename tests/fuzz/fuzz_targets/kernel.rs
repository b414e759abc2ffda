//! Fuzzes the loader of kernels. A packed recording contains its kernel, so the kernel may be hostile.

#![no_main]

use boot::{BootImages, Image, Module, load, packed_kernel};
use guest_ram::GuestRam;
use libfuzzer_sys::fuzz_target;

const RAM_BYTES: u64 = 8 << 20;

thread_local! {
    /// The loader never reads the old contents of RAM, so all kernels can use the same RAM.
    static RAM: GuestRam = GuestRam::new(RAM_BYTES).expect("there is room for this much");
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&companions, kernel)) = bytes.split_first() else { return };
    let other = Image { name: "other", bytes: b"ttvm-module" };
    let images = BootImages {
        cmdline: "console=ttyS0",
        initrd: (companions & 1 != 0).then_some(other),
        modules: vec![Module { image: other, cmdline: "one" }; usize::from(companions >> 1 & 3)],
        rng_seed: (companions & 8 != 0).then_some([7; 32]),
        ..BootImages::new(Image { name: "kernel", bytes: kernel })
    };
    let _ = RAM.with(|ram| load(ram, &images));
    let _ = packed_kernel::unpack(kernel);
});
